// Files made in the page: a Blob behind a link, so nothing is asked of any server.
function saveFile(name, content, type) {
  const blob = content instanceof Blob ? content : new Blob([content], { type });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// A spreadsheet runs a cell that begins with one of these, so such text gets an apostrophe.
const FORMULA = /^[=+\-@\t\r]/;

function csvCell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = FORMULA.test(String(value)) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function csvText(columns, rows) {
  const lines = [columns.map(([, heading]) => csvCell(heading)).join(",")];
  for (const row of rows) lines.push(columns.map(([field]) => csvCell(row[field])).join(","));
  return lines.join("\r\n") + "\r\n";
}

// "Memory by part" -> "memory-by-part", for file names.
function slug(title) {
  return title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "") || "chart";
}

// Colors are CSS variables in the page; a file must hold the colors themselves.
function standaloneSvg(svg, host) {
  const style = getComputedStyle(host);
  const color = (_, name) => style.getPropertyValue(name).trim() || "currentColor";
  const text = svg.replace(/var\((--[\w-]+)(?:,[^()]*)?\)/g, color);
  const paper = color("", "--sw-paper");
  return text.replace(/(<svg[^>]*>)/, `$1<rect width="100%" height="100%" fill="${paper}"/>`);
}

async function pngOf(svg, width, height) {
  const image = new Image();
  image.src = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
  try {
    await image.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [2 * width, 2 * height];
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  } finally {
    URL.revokeObjectURL(image.src);
  }
}
