// The map: two dimensions of the embeddings, thumbnails where there is room.
import { api, thumb } from "./api.js";

const SIDE = 44, MOST = 400, KEPT = 1500;

export class PictureMap {
  constructor(canvas, open) {
    Object.assign(this, { canvas, open, points: null, zoom: 1, x: 0, y: 0, images: new Map(), fingers: new Map() });
    canvas.addEventListener("wheel", (event) => { event.preventDefault(); this.zoomAt(event.offsetX, event.offsetY, Math.exp(-event.deltaY / 400)); }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.fingers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
      this.moved = this.fingers.size > 1 ? Infinity : 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const from = this.fingers.get(event.pointerId);
      if (!from) return;
      const to = { x: event.offsetX, y: event.offsetY }, other = [...this.fingers].find(([id]) => id !== event.pointerId)?.[1];
      this.fingers.set(event.pointerId, to);
      this.moved += Math.abs(to.x - from.x) + Math.abs(to.y - from.y);
      if (other) { // two fingers: what lies between them grows as they part
        const apart = ({ x, y }) => Math.max(8, Math.hypot(x - other.x, y - other.y));
        this.zoomAt((to.x + other.x) / 2, (to.y + other.y) / 2, apart(to) / apart(from));
      } else { this.x += to.x - from.x; this.y += to.y - from.y; this.schedule(); }
    });
    for (const kind of ["pointerup", "pointercancel"]) canvas.addEventListener(kind, (event) => {
      const still = this.fingers.delete(event.pointerId) && kind === "pointerup" && this.moved < 5;
      if (still) this.pick(event.offsetX, event.offsetY);
    });
    canvas.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[event.key];
      if (steps) { this.x += steps[0]; this.y += steps[1]; this.schedule(); event.preventDefault(); }
      if (event.key === "Enter") { event.preventDefault(); this.pick(canvas.clientWidth / 2, canvas.clientHeight / 2, Infinity); }
      if (event.key === "+" || event.key === "-") this.zoomAt(canvas.clientWidth / 2, canvas.clientHeight / 2, event.key === "+" ? 1.3 : 1 / 1.3);
    });
    new ResizeObserver(() => this.schedule()).observe(canvas);
  }

  async load(version, where) {
    if (this.points && this.version === version && this.where === where) return this.method;
    Object.assign(this, { images: new Map(), where }, await api.map(where));
    this.schedule();
    return this.method;
  }

  zoomAt(x, y, factor) {
    x -= this.canvas.clientWidth / 2; y -= this.canvas.clientHeight / 2; // places count from the middle
    this.x = x - (x - this.x) * factor; this.y = y - (y - this.y) * factor; this.zoom *= factor;
    this.schedule();
  }

  place(index) {
    const size = Math.min(this.canvas.clientWidth, this.canvas.clientHeight) * 0.92 * this.zoom;
    return [this.x + this.canvas.clientWidth / 2 + (this.points[2 * index] - 0.5) * size, this.y + this.canvas.clientHeight / 2 + (this.points[2 * index + 1] - 0.5) * size];
  }

  schedule() { if (!this.waiting) this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.draw(); }); }

  draw() {
    if (!this.points) return;
    const { canvas } = this, ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
    canvas.width = width * ratio; canvas.height = height * ratio;
    const ink = canvas.getContext("2d");
    ink.scale(ratio, ratio);
    ink.fillStyle = getComputedStyle(canvas).color;
    const taken = new Set();
    this.drawn = [];
    for (let index = 0; index < this.ids.length; index++) {
      const [x, y] = this.place(index);
      if (x < -SIDE || y < -SIDE || x > width + SIDE || y > height + SIDE) continue;
      const cell = `${Math.floor(x / SIDE)} ${Math.floor(y / SIDE)}`;
      if (taken.has(cell) || this.drawn.length >= MOST) { ink.fillRect(x - 1, y - 1, 2, 2); continue; }
      taken.add(cell);
      this.drawn.push([x, y, index]);
    }
    for (const [x, y, index] of this.drawn) {
      const image = this.image(this.ids[index]);
      if (image.complete && image.naturalWidth) {
        const scale = (SIDE - 2) / Math.max(image.naturalWidth, image.naturalHeight);
        ink.drawImage(image, x - image.naturalWidth * scale / 2, y - image.naturalHeight * scale / 2, image.naturalWidth * scale, image.naturalHeight * scale);
      } else ink.fillRect(x - 3, y - 3, 6, 6);
    }
  }

  image(id) {
    let image = this.images.get(id);
    if (!image) {
      image = new Image();
      image.addEventListener("load", () => this.schedule());
      image.src = thumb(id);
      this.images.set(id, image);
      if (this.images.size > KEPT) this.images.delete(this.images.keys().next().value);
    }
    return image;
  }

  pick(x, y, least = SIDE * SIDE) {
    let best = null;
    for (const [px, py, index] of this.drawn || []) {
      const distance = (px - x) ** 2 + (py - y) ** 2;
      if (distance < least) { least = distance; best = index; }
    }
    if (best !== null) this.open({ id: this.ids[best], caption: "" });
  }
}
