import type { Schemas } from "../../api/types";

export const KEEPS: Readonly<Record<Schemas["Keep"], string>> = {
  apart: "apart, never two on one host",
  together: "together, on one host as far as that has room",
};
