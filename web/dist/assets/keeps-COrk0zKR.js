const o={apart:"apart, never two on one host",together:"together, on one host as far as that has room"};export{o as K};
