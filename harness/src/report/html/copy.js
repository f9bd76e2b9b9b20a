// Buttons that copy a command. The page can be read without any of it.
(() => {
  "use strict";
  for (const button of document.querySelectorAll("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      const label = button.firstChild;
      try {
        await navigator.clipboard.writeText(code.textContent);
        label.data = "Copied";
      } catch {
        // Without leave to write the clipboard, what would be copied is selected.
        getSelection().selectAllChildren(code);
        label.data = "Selected";
      }
      setTimeout(() => { label.data = "Copy"; }, 1500);
    });
  }
})();
