// Elements without innerHTML: whatever a file is called and whatever a server says stays text.

export const byId = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const milliseconds = (value) => `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;

export function percent(value) {
  if (value > 0 && value < 0.0005) return "< 0.1%";
  return value >= 0.9995 ? "100%" : `${(value * 100).toFixed(1)}%`;
}
