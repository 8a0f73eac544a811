// A sheet of paper: pointer or keyboard.

const INK = 22;
const STEP = 10;

export function paper(canvas, send) {
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  let at = [canvas.width / 2, canvas.height / 2];
  let down = false;
  let drawn = false;

  function clear() {
    pen.fillStyle = "#fff";
    pen.fillRect(0, 0, canvas.width, canvas.height);
    Object.assign(pen, { strokeStyle: "#111", lineWidth: INK, lineCap: "round", lineJoin: "round" });
    drawn = false;
  }

  function line(to) {
    pen.beginPath();
    pen.moveTo(...at);
    pen.lineTo(...to);
    pen.stroke();
    at = to;
    drawn = true;
  }

  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    const scale = canvas.width / box.width;
    return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
  };

  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    down = true;
    at = place(event);
    line(at);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!down || event.pointerType === "keyboard") return;
    for (const each of event.getCoalescedEvents?.() ?? [event]) line(place(each));
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { down = false; });

  let touching = false;
  const moves = { ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, -STEP], ArrowDown: [0, STEP] };
  canvas.addEventListener("keydown", (event) => {
    const move = moves[event.key];
    if (move) {
      const to = [0, 1].map((axis) => Math.min(Math.max(at[axis] + move[axis], 0), canvas.width));
      if (touching) line(to);
      else at = to;
    } else if (event.key === " ") {
      touching = !touching;
      if (touching) line(at);
    } else if (event.key === "Enter") {
      send();
    } else if (event.key === "Escape") {
      clear();
    } else {
      return;
    }
    event.preventDefault();
  });

  clear();
  return {
    clear,
    isEmpty: () => !drawn,
    png: () => new Promise((done) => { canvas.toBlob(done, "image/png"); }),
    // [1, side, side] float32, light ink on dark ground, as a tensor model reads it
    tensor(side) {
      const small = document.createElement("canvas");
      small.width = side;
      small.height = side;
      const copy = small.getContext("2d");
      copy.imageSmoothingQuality = "high";
      copy.drawImage(canvas, 0, 0, side, side);
      const { data } = copy.getImageData(0, 0, side, side);
      return Float32Array.from({ length: side * side }, (_, i) => 1 - data[4 * i] / 255);
    },
  };
}
