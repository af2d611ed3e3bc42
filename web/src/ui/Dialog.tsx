import type { ReactNode } from "react";
import { Dialog as Sheet, Heading, Modal, ModalOverlay } from "react-aria-components";
import { IconButton } from "./Button";

interface Props {
  title: string;
  children: ReactNode;
  onClose: () => void;
  size?: "narrow" | "wide";
  /** A dialog that has to be answered has no way round it. */
  mustAnswer?: boolean;
  side?: boolean;
}

/** Puts the focus into the first field, if there is one. */
function focusFirst(body: HTMLElement | null): void {
  body?.querySelector<HTMLElement>("input:not([type=checkbox]), select, textarea")?.focus();
}

export function Dialog({
  title,
  children,
  onClose,
  size = "narrow",
  mustAnswer = false,
  side = false,
}: Props) {
  return (
    <ModalOverlay
      isOpen
      isDismissable={side}
      isKeyboardDismissDisabled={mustAnswer}
      onOpenChange={(isOpen) => {
        if (!isOpen) onClose();
      }}
      className={side ? "veil veil-side" : "veil"}
    >
      <Modal className={side ? "sheet sheet-side" : `sheet sheet-${size}`}>
        <Sheet className="dialog" role={mustAnswer ? "alertdialog" : "dialog"}>
          <header className="dialog-head">
            <Heading slot="title" className="dialog-title">
              {title}
            </Heading>
            {mustAnswer ? null : <IconButton icon="close" label="Close" onPress={onClose} />}
          </header>
          <div className="dialog-body" ref={focusFirst}>
            {children}
          </div>
        </Sheet>
      </Modal>
    </ModalOverlay>
  );
}
