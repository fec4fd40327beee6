"use strict";
// Brings the name of the page into the menu of a narrow screen. Fetches a page marked as live again when squidbot says that something has changed, while it is looked at
// and nobody is writing into it.
(() => {
  document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  const main = document.querySelector("main[data-live]");
  if (!main) return;
  const renew = async () => {
    if (document.hidden || main.contains(document.activeElement)) return;
    if ([...main.querySelectorAll("textarea")].some((each) => each.value !== each.defaultValue)) return;
    try {
      const answer = await fetch(location.pathname, { credentials: "same-origin" });
      if (!answer.ok) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.querySelector("main[data-live]");
      const said = main.querySelector(".said");
      if (!fresh || fresh.innerHTML === main.innerHTML) return;
      if (said) fresh.querySelector("h1").after(said);
      main.replaceChildren(...fresh.childNodes);
    } catch { /* the next event finds it again */ }
  };
  new EventSource("/console/changes").onmessage = renew;
  document.addEventListener("visibilitychange", renew);
})();
