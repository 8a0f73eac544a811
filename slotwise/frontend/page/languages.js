// A language code in words, as far as the browser knows them.

const names = typeof Intl.DisplayNames === "function" ? new Intl.DisplayNames(["en"], { type: "language" }) : null;

export function language(code) {
  try {
    return names?.of(code) ?? code;
  } catch {
    return code;
  }
}
