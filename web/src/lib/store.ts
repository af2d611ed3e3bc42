import { useSyncExternalStore } from "react";

/** A state that the page has once, and those who want to know when it changes. */
export class Store<State> {
  #state: State;
  readonly #listeners = new Set<() => void>();

  constructor(state: State) {
    this.#state = state;
  }

  readonly state = (): State => this.#state;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  get hasListeners(): boolean {
    return this.#listeners.size > 0;
  }

  become(next: State): void {
    this.#state = next;
    for (const listener of this.#listeners) listener();
  }
}

export function useStore<State>({
  subscribe,
  state,
}: Pick<Store<State>, "subscribe" | "state">): State {
  return useSyncExternalStore(subscribe, state);
}
