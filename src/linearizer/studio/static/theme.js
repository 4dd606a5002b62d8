// Runs before the page is drawn, so that a chosen theme does not flash.
try {
  const chosen = localStorage.getItem("linearizer-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage may be switched off: the system's colours then hold.
}

// A script or style sheet that did not arrive would leave the page empty without a word.
addEventListener("error", (event) => {
  if (!(event.target instanceof HTMLScriptElement || event.target instanceof HTMLLinkElement)) return;
  const say = () => {
    const place = document.getElementById("outage");
    place.textContent = "A part of this page did not arrive. Reload it.";
    place.hidden = false;
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", say);
  else say();
}, true);
