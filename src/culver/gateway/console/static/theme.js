// Dark or light: the system's wish, until the switch is used; the choice is remembered.
// A classic script in the head, so that the first paint has the right colours already.

(() => {
  const KEY = "culver.theme";
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");

  function remembered() {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // storage may be forbidden; the switch then lasts as long as the page
    }
  }

  function apply(choice) {
    if (choice === "dark" || choice === "light") root.dataset.theme = choice;
    else delete root.dataset.theme;
  }

  apply(remembered());

  window.culverTheme = {
    current: () => root.dataset.theme ?? (dark.matches ? "dark" : "light"),
    toggle() {
      const next = this.current() === "dark" ? "light" : "dark";
      apply(next);
      try {
        localStorage.setItem(KEY, next);
      } catch {
        // see remembered()
      }
      return next;
    },
  };
})();
