"use strict";
// Fetches a page marked as live again, while it is looked at and nobody is writing into it.
(() => {
  const main = document.querySelector("main[data-live]");
  if (!main) return;
  setInterval(async () => {
    if (document.hidden || main.contains(document.activeElement)) return;
    try {
      const answer = await fetch(location.pathname, { credentials: "same-origin" });
      if (!answer.ok) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.querySelector("main[data-live]");
      if (fresh && fresh.innerHTML !== main.innerHTML) main.replaceChildren(...fresh.childNodes);
    } catch { /* the next look finds it again */ }
  }, 5000);
})();
