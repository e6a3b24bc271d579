// Values stored by this browser. Storage may be blocked; values are then lost when the page closes.
export const stored = (name) => {
  try {
    return localStorage.getItem(`recollect.${name}`);
  } catch {
    return null;
  }
};
export const store = (name, value) => {
  try {
    localStorage.setItem(`recollect.${name}`, value);
  } catch {
    /* not persisted */
  }
};
