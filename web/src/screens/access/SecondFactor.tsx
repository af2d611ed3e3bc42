import { CodeLine } from "../../ui/CodeLine";
import { ShownOnce } from "../../ui/ShownOnce";
import { otpAddress } from "./otp";

interface Props {
  user: string;
  secret: string;
  onClose: () => void;
}

export function SecondFactor({ user, secret, onClose }: Props) {
  return (
    <ShownOnce
      title={`The second factor of ${user}`}
      label="Secret"
      secret={secret}
      onClose={onClose}
    >
      <p>
        {user} enters it into an authenticator (time-based codes, six digits). Each sign-in takes
        the password and a code, which counts once.
      </p>
      <CodeLine label="Address" text={otpAddress(user, location.host, secret)} />
    </ShownOnce>
  );
}
