/** The alarm `datastore_full` is raised there. */
export const FULL_FROM = 0.95;
