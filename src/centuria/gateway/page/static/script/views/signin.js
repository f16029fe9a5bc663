import { signIn } from "../api.js";
import { dots, el, say } from "../dom.js";

export function signInView({ done }) {
  const wrong = el("p", { class: "wrong", id: "key-wrong", role: "alert" });
  const input = el("input", { type: "password", id: "key", name: "key", required: true, autocomplete: "current-password", spellcheck: "false", "aria-describedby": "key-hint key-wrong" });
  const go = el("button", { class: "button main", type: "submit" }, "Sign in");
  const form = el("form", { novalidate: true },
    dots(3), el("h1", {}, "Centuria"), el("p", { class: "soft" }, "A hundred agents, one job. Sign in to watch and steer."),
    el("div", { class: "field" }, el("label", { for: "key" }, "Your key"), input, wrong,
      el("p", { class: "hint", id: "key-hint" }, "It is sent once and not kept in this browser.")),
    go);
  form.addEventListener("submit", async event => {
    event.preventDefault();
    if (go.disabled) return;
    const refuse = text => { say(wrong, text); input.setAttribute("aria-invalid", "true"); input.focus(); input.select(); };
    if (!input.value.trim()) { refuse("Enter your key."); return; }
    say(wrong, "");
    input.removeAttribute("aria-invalid");
    go.disabled = true;
    say(go, "Signing in …");
    try {
      const told = await signIn(input.value.trim());
      input.value = "";
      done(told);
    } catch (error) {
      refuse(error.status === 401 ? "The gateway does not know this key." : error.message);
    } finally {
      go.disabled = false;
      say(go, "Sign in");
    }
  });
  return { title: "Sign in", node: el("div", { class: "sign-in" }, form), focus: input };
}
