import type { Key, ReactNode } from "react";

export interface Column<Row> {
  name: string;
  cell: (row: Row) => ReactNode;
  isNumber?: boolean;
  /** The label is for those who do not see the table. */
  isUnseen?: boolean;
  /** Left out where there is little room. */
  isMinor?: boolean;
}

interface Props<Row> {
  label: string;
  columns: readonly Column<Row>[];
  rows: readonly Row[];
  keyOf: (row: Row) => Key;
}

/** A table of some rows; on a phone each row is a card. */
export function Table<Row>({ label, columns, rows, keyOf }: Props<Row>) {
  return (
    <table className="table" aria-label={label}>
      <thead>
        <tr>
          {columns.map((column) => (
            <th key={column.name} scope="col" className={classOf(column)}>
              {column.isUnseen === true ? (
                <span className="unseen">{column.name}</span>
              ) : (
                column.name
              )}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {rows.map((row) => (
          <tr key={keyOf(row)}>
            {columns.map((column) => (
              <td
                key={column.name}
                className={classOf(column)}
                data-label={column.isUnseen === true ? "" : column.name}
              >
                {column.cell(row)}
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function classOf<Row>({ isNumber, isMinor }: Column<Row>): string {
  return [isNumber === true ? "number cell-number" : "", isMinor === true ? "cell-minor" : ""]
    .join(" ")
    .trim();
}
