// Copy buttons: a click on an element with data-copy copies that attribute's text.

const announcement = element("p", { className: "skip", role: "status" });
document.body.append(announcement);

// navigator.clipboard is missing, or refuses, if a browser does not trust the page (http, some file: pages).
async function copied(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const source = element("textarea", { className: "skip", value: text, readOnly: true });
    button.after(source);
    source.select();
    const done = document.execCommand("copy");
    source.remove();
    button.focus();
    return done;
  }
}

document.addEventListener("click", async ({ target }) => {
  const button = target.closest("[data-copy]");
  if (!button) return;
  const label = (button.dataset.label ??= button.textContent);
  announcement.textContent = button.textContent = (await copied(button.dataset.copy, button)) ? "Copied" : data.said.not_copied;
  setTimeout(() => {
    button.textContent = label;
    announcement.textContent = "";
  }, 2000);
});
