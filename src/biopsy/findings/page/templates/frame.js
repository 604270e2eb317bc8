"use strict";
{
  const spoken = document.getElementById("spoken");

  // What is wider than the screen can be scrolled by keyboard.
  for (const box of document.querySelectorAll(".scroll")) if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;

  for (const button of document.querySelectorAll(".copy")) {
    const line = button.parentElement.querySelector("code");
    button.hidden = false;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(line.textContent);
        button.textContent = "Copied";
      } catch {
        window.getSelection().selectAllChildren(line);
        button.textContent = "Selected";
      }
      spoken.textContent = button.textContent;
    });
  }

  // On paper nothing can be unfolded.
  let folded = [];
  window.addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const each of folded) each.open = true;
  });
  window.addEventListener("afterprint", () => { for (const each of folded) each.open = false; });
}
