{
  const marks = JSON.parse(document.getElementById("marks").textContent);
  const tip = document.getElementById("tip");
  const spoken = document.getElementById("spoken");
  const reach = 16; // pixels around a mark within which a pointer means it

  // A text beside a place on the screen, a line each, and within the window. `follow`: how to show it again where the
  // place has moved to, for what the keyboard has reached.
  let again = null;
  const show = (text, at, follow = null) => {
    again = follow;
    tip.replaceChildren(...text.split("\n").map((line) => {
      const row = document.createElement("div");
      row.textContent = line;
      return row;
    }));
    tip.hidden = false;
    tip.style.left = tip.style.top = "0"; // where it stands limits how wide it gets
    const { width, height } = tip.getBoundingClientRect();
    const left = Math.min(at.x + 14, window.innerWidth - width - 8);
    const below = at.y + 18 + height < window.innerHeight;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${Math.max(8, below ? at.y + 18 : at.y - height - 12)}px`;
  };
  const hide = () => {
    tip.hidden = true;
    again = null;
  };
  window.addEventListener("scroll", () => { if (again) again(); else hide(); }, { capture: true, passive: true });

  // Boxes and edges of the graph.
  for (const item of document.querySelectorAll("[data-tip]")) {
    const text = marks.graph.text[item.dataset.tip];
    item.addEventListener("pointermove", (event) => show(text, { x: event.clientX, y: event.clientY }));
    item.addEventListener("pointerleave", hide);
    const reached = () => {
      const { left, bottom } = item.getBoundingClientRect();
      show(text, { x: left, y: bottom - 12 }, reached);
    };
    item.addEventListener("focus", reached);
    item.addEventListener("blur", hide);
  }

  // Plots and maps: the mark under the pointer, or the one that the arrow keys have reached.
  for (const plot of document.querySelectorAll("svg[data-marks]")) {
    const { x, y, flags } = marks[plot.dataset.marks];
    const { text } = marks[plot.dataset.textsOf || plot.dataset.marks];
    const cursor = plot.querySelector(".cursor");
    let here = -1;

    const go = (mark, follow) => {
      here = Math.max(0, Math.min(text.length - 1, mark));
      cursor.setAttribute("cx", x[here]);
      cursor.setAttribute("cy", y[here]);
      cursor.setAttribute("visibility", "visible");
      show(text[here], new DOMPoint(x[here], y[here]).matrixTransform(plot.getScreenCTM()), follow);
    };
    const reached = () => go(here, reached);
    const leave = () => {
      cursor.setAttribute("visibility", "hidden");
      hide();
    };
    const nearest = (event) => {
      const scale = plot.getScreenCTM();
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(scale.inverse());
      const up = plot.dataset.nearest === "x" ? 0 : 1;
      let best = -1;
      let least = (reach / scale.a) ** 2;
      for (let mark = 0; mark < x.length; mark++) {
        const far = (x[mark] - at.x) ** 2 + up * (y[mark] - at.y) ** 2;
        if (far < least) [best, least] = [mark, far];
      }
      return best;
    };
    const point = (event) => {
      const mark = nearest(event);
      if (mark < 0) leave(); else go(mark);
    };
    plot.addEventListener("pointermove", point);
    plot.addEventListener("pointerdown", point);
    plot.addEventListener("pointerleave", leave);
    plot.addEventListener("blur", leave);

    const flagged = (step) => {
      const ordered = step > 0 ? flags : [...flags].reverse();
      return ordered.find((mark) => (mark - here) * step > 0) ?? ordered[0] ?? here;
    };
    const stride = Number(plot.dataset.stride);
    const moves = {
      ArrowRight: () => here + 1, ArrowLeft: () => here - 1, ArrowDown: () => here + stride, ArrowUp: () => here - stride,
      Home: () => 0, End: () => text.length - 1, n: () => flagged(1), N: () => flagged(-1),
    };
    plot.addEventListener("keydown", (event) => {
      const move = moves[event.key];
      if (!move || !text.length || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      here = move();
      reached();
      spoken.textContent = text[here];
    });
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
}
