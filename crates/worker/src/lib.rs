//! Wires the stages of one VM's volumes.
