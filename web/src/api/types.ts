import type { components, operations } from "./generated/schema";

export type Schemas = components["schemas"];
export type OperationId = keyof operations;

/** A change of a volume: all are one operation, and each takes another right. */
export type VolumeRight =
  `volume_${"create" | "clone" | "resize" | "snapshot" | "revert" | "bind" | "unbind" | "delete"}`;
/** What a right is needed for. */
export type Right = OperationId | VolumeRight;

type Json<Body> = Body extends { content: { "application/json": infer Value } } ? Value : never;

/** What an operation answers when it succeeds. */
export type AnswerOf<Id extends OperationId> = {
  [Status in keyof operations[Id]["responses"] & (200 | 201 | 202)]: Json<
    operations[Id]["responses"][Status]
  >;
}[keyof operations[Id]["responses"] & (200 | 201 | 202)];

type Parameters<Id extends OperationId, Place extends "path" | "query"> = NonNullable<
  operations[Id]["parameters"][Place]
>;
type BodyOf<Id extends OperationId> = operations[Id] extends { requestBody: infer Body }
  ? Json<Body>
  : operations[Id] extends { requestBody?: infer Body }
    ? Json<NonNullable<Body>>
    : never;

type IfAny<Value, Then> = [Value] extends [never] ? unknown : Then;

/** What a request for an operation consists of. */
export type RequestOf<Id extends OperationId> = IfAny<
  Parameters<Id, "path">,
  { path: Parameters<Id, "path"> }
> &
  IfAny<Parameters<Id, "query">, { query?: Parameters<Id, "query"> }> &
  IfAny<BodyOf<Id>, { body?: BodyOf<Id> }>;

/** A request of any operation, as it is sent. */
export interface PlainRequest {
  path?: Readonly<Record<string, string | number>>;
  query?: object;
  body?: unknown;
}

export type Vm = Schemas["VmView"];
export type VmSummary = Schemas["VmSummary"];
export type Task = Schemas["Task"];
export type Snapshot = Schemas["Snapshot"];
export type Disk = Schemas["Disk"];
export type Alarm = Schemas["Alarm"];
export type StrongroomEvent = Schemas["Event"];
export type ObjectRef = Schemas["ObjectRef"];
export type PowerState = Schemas["PowerState"];
export type Privilege = Schemas["Privilege"];
