"use strict";
// The page says everything without this script, which shows one peer's maps at a time.

function choosePeer(section) {
  const radios = [...section.querySelectorAll(".peers input")];
  const show = () => {
    const chosen = radios.find((radio) => radio.checked);
    section.querySelectorAll(".maps").forEach((maps) => {
      maps.hidden = maps.dataset.peer !== chosen.value;
    });
  };
  radios.forEach((radio) => radio.addEventListener("change", show));
  if (radios.length) show();
}

document.querySelectorAll(".benchmark").forEach(choosePeer);
