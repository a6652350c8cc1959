// Asks again and again while somebody looks: never two questions at once, none while the tab is hidden.

import { Problem } from "./api.js";

const LONGEST_MS = 15_000;
// An answer that takes longer counts as none, until it comes: what is shown meanwhile is old.
export const OVERDUE_MS = 2000;

export class Poll {
  #timer;
  #abort = new AbortController();
  #failures = 0;
  #busy = false;
  #again = false;
  // When the last question came to its end.
  #ended = Date.now();
  #seen = () => (document.hidden ? clearTimeout(this.#timer) : this.now());

  /**
   * `load(signal)` asks; `show(error)` is called after each answer, and when one is overdue; `late()` when it
   * asks again after a time in which nobody asked, because the tab was hidden or the computer slept.
   */
  constructor({ every, load, show, late = () => {} }) {
    Object.assign(this, { every, load, show, late });
    document.addEventListener("visibilitychange", this.#seen);
    this.now();
  }

  /** Asks at once; once more when a question is under way that may miss what just changed. */
  async now() {
    clearTimeout(this.#timer);
    // After a failure it asks seldom, and what is shown is called old already.
    if (!this.#failures && Date.now() - this.#ended > this.every + OVERDUE_MS) this.late();
    if (this.#busy) {
      this.#again = true;
      return;
    }
    this.#busy = true;
    let failure = null;
    const overdue = setTimeout(() => {
      this.show(new Problem(0, "No answer", "The server, or its database, has not answered yet."));
    }, OVERDUE_MS);
    this.#abort.signal.addEventListener("abort", () => clearTimeout(overdue), { once: true });
    try {
      await this.load(this.#abort.signal);
      this.#failures = 0;
    } catch (error) {
      failure = error;
      this.#failures += 1;
    }
    clearTimeout(overdue);
    this.#ended = Date.now();
    this.#busy = false;
    if (this.#abort.signal.aborted) return;
    this.show(failure);
    if (this.#again) {
      this.#again = false;
      this.now();
    } else if (!document.hidden) {
      const wait = Math.min(this.every * 2 ** this.#failures, Math.max(this.every, LONGEST_MS));
      this.#timer = setTimeout(() => this.now(), wait);
    }
  }

  /** Asks no more; an answer that still comes is not shown. */
  stop() {
    clearTimeout(this.#timer);
    document.removeEventListener("visibilitychange", this.#seen);
    this.#abort.abort();
  }
}
