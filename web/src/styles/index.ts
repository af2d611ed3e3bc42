import "./tokens.css";
import "./base.css";
import "./controls.css";
import "./layers.css";
import "./parts.css";
import "./shell.css";
import "./vms.css";
import "./vm.css";
