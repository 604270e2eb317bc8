{
  // The matrix: `kinds` are [name, symbol, tone], `models` are [path, the number of a kind for each engine ...].
  const { engines, kinds, models } = JSON.parse(document.getElementById("marks").textContent);
  const perPart = 100; // rows that the browser lays out together, once they are near the window
  const matrix = document.getElementById("matrix");
  const [engine, kind, path] = ["engine", "kind", "path"].map((id) => document.getElementById(id));
  matrix.style.setProperty("--engines", engines.length);

  const element = (role, text, ...classes) => {
    const made = document.createElement("div");
    made.setAttribute("role", role);
    made.textContent = text;
    if (classes.length) made.className = classes.join(" ");
    return made;
  };
  const row = ([name, ...cells]) => {
    const made = element("row", "", "row");
    const head = element("rowheader", name);
    head.title = name;
    made.append(head, ...cells.map((number) => {
      const [text, symbol, tone] = kinds[number];
      return element("cell", `${symbol} ${text}`, tone);
    }));
    return made;
  };
  const head = element("row", "", "row", "head");
  head.append(...["model", ...engines].map((text) => element("columnheader", text)));

  const show = () => {
    const [column, wanted, text] = [engine.value, kind.value, path.value.toLowerCase()];
    const found = models.filter(([name, ...cells]) => {
      const looked = column === "" ? cells : [cells[column]];
      return (wanted === "" || looked.includes(Number(wanted))) && name.toLowerCase().includes(text);
    });
    const parts = [];
    for (let at = 0; at < found.length; at += perPart) {
      const part = element("rowgroup", "", "part");
      part.append(...found.slice(at, at + perPart).map(row));
      parts.push(part);
    }
    matrix.replaceChildren(head, ...parts);
    document.getElementById("shown").textContent = `${found.length} of ${models.length} models`;
  };

  engines.forEach((text, number) => engine.append(new Option(text, number)));
  const used = new Set(models.flatMap(([, ...cells]) => cells));
  kinds.forEach(([text, symbol], number) => { if (used.has(number)) kind.append(new Option(`${symbol} ${text}`, number)); });
  for (const control of [engine, kind, path]) control.addEventListener("input", show);
  show();
}
