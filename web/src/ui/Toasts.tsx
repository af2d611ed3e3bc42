import { useStore } from "../lib/store";
import { Link } from "wouter";
import { IconButton } from "./Button";
import { Mark } from "./Status";
import { dismiss, toasts, type Toast } from "./toasts";

export function Toasts() {
  const shown = useStore(toasts);
  return (
    <div className="toasts" role="status" aria-live="polite">
      {shown.map((toast) => (
        <ToastCard key={toast.id} toast={toast} />
      ))}
    </div>
  );
}

function ToastCard({ toast: { id, tone, text, problem, link, command } }: { toast: Toast }) {
  return (
    <div className={`toast toast-${tone}`}>
      <div className="toast-words">
        <Mark tone={tone} shape={tone === "good" ? "tick" : "cross"}>
          {text}
        </Mark>
        {problem === undefined ? null : (
          <p className="small">
            {problem.message}
            {problem.nextStep === undefined ? "" : `; ${problem.nextStep}`}
            {problem.request === undefined ? null : (
              <span className="soft">
                {" "}
                request <code>{problem.request}</code>
              </span>
            )}
          </p>
        )}
        {command === undefined ? null : <code className="toast-command">{command}</code>}
        {link === undefined ? null : <Link href={link.to}>{link.label}</Link>}
      </div>
      <IconButton icon="close" label="Dismiss" onPress={() => dismiss(id)} />
    </div>
  );
}
