/** How this package waits. Tests wait less. */
export const clock = {
  /** Waits. */
  sleep: (secs: number): Promise<void> =>
    new Promise((resolve) => {
      setTimeout(resolve, secs * 1000);
    }),
};
