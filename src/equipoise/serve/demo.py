"""Pictures for the demo: a few kinds of things, painted like illustrations in a children's book."""

from __future__ import annotations

import io
import math
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw

Colour = np.ndarray  # red, green and blue, 0–1
Points = np.ndarray  # one row per point: x to the right, y down; the picture is from -1 to 1

PICTURES = 16  # per kind
OVERSAMPLING = 2  # pictures are painted this much larger, so that edges are smooth
WHITE = np.ones(3)
SQUARE = "-100 -100 -100 -100 100 -100 100 -100 100 100 100 100 -100 100 -100 100"


class Canvas:
    """A picture that is being painted, and its random numbers."""

    def __init__(self, size: int, rng: np.random.Generator, number: int) -> None:
        self.rng, self.side = rng, size * OVERSAMPLING
        self.number = number  # decides on variants, so that any few pictures in a row show all of them
        self.pixels = np.zeros((self.side, self.side, 3), np.float32)
        self.grain = np.zeros((self.side, self.side), np.float32)
        for cells in (20, 160):  # brush marks and paper: without them every surface looks like plastic
            noise = Image.fromarray(rng.normal(0, 0.02, (cells, cells)).astype(np.float32))
            self.grain += np.asarray(noise.resize(self.grain.shape, Image.Resampling.BICUBIC))
        self.place()

    def between(self, low: float, high: float) -> float:
        """Draw a random number."""
        return float(self.rng.uniform(low, high))

    def pick(self, palette: str) -> Colour:
        """Draw one of the colours, given as hex digits with spaces between, and vary it a little."""
        code = bytes.fromhex(self.rng.choice(palette.split()))
        return np.frombuffer(code, np.uint8) / 255 * self.rng.uniform(0.95, 1.05, 3)

    def place(self, x: float = 0, y: float = 0, scale: float = 1, angle: float = 0, mirror: int = 1) -> None:
        """Choose where the following shapes go: origin, size, rotation in degrees, and -1 to mirror."""
        cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        self.matrix = scale * np.array([[mirror * cos, mirror * sin], [-sin, cos]])
        self.origin, self.scale = np.array([x, y]), scale

    def gradient(self, top: Colour, bottom: Colour) -> None:
        """Cover the whole picture."""
        down = np.linspace(0, 1, self.side)[:, None, None]
        self.pixels[:] = (top * (1 - down) + bottom * down) * (1 + self.grain[..., None])

    def fill(self, points: Points, colour: Colour, shade: float = 0.15, alpha: float = 1, width: int = 0) -> None:
        """Fill a polygon, lighter at the upper left by ``shade``, or draw a line of some pixels along it."""
        spots = (points @ self.matrix + self.origin + 1) * self.side / 2
        low = np.clip(np.floor(spots.min(0)).astype(int) - width, 0, self.side - 1)
        high = np.clip(np.ceil(spots.max(0)).astype(int) + width + 1, 1, self.side)
        (left, top), (right, bottom) = low.tolist(), high.tolist()
        mask = Image.new("1", (right - left, bottom - top))
        path = (spots - low).ravel().tolist()
        if width:
            ImageDraw.Draw(mask).line(path, fill=1, width=width, joint="curve")
        else:
            ImageDraw.Draw(mask).polygon(path, fill=1)
        across, down = np.linspace(1, -1, right - left), np.linspace(1, -1, bottom - top)
        light = 1 + shade * (0.4 * across + 0.6 * down[:, None]) + self.grain[top:bottom, left:right]
        area, inside = self.pixels[top:bottom, left:right], np.asarray(mask)
        area[inside] += alpha * (light[inside][:, None] * colour - area[inside])

    def solid(self, points: Points, colour: Colour, shade: float = 0.2) -> None:
        """Fill a polygon and outline it."""
        self.fill(points, colour, shade)
        self.stroke(np.concatenate([points, points[:2]]), colour * 0.62, 0.014)

    def stroke(self, points: Points, colour: Colour, width: float = 0.014, alpha: float = 1) -> None:
        """Draw a line through points."""
        self.fill(points, colour, 0, alpha, max(1, round(width * self.scale * self.side / 2)))


@lru_cache(256)  # each takes about a tenth of a second
def draw(kind: str, number: int, size: int = 320) -> bytes:
    """Return a JPEG of one picture; the same number gives the same picture."""
    canvas = Canvas(size, np.random.default_rng([KINDS.index(kind), number]), number)
    PAINTERS[kind](canvas)
    image = Image.fromarray((canvas.pixels.clip(0, 1) * 255).round().astype(np.uint8))
    buffer = io.BytesIO()
    image.reduce(OVERSAMPLING).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def dots(*numbers: float) -> Points:
    """Return points from x, y, x, y, …"""
    return np.array(numbers, float).reshape(-1, 2)


def oval(x: float, y: float, width: float, height: float) -> Points:
    """Return an ellipse around a point; width and height are radii."""
    angle = np.linspace(0, 2 * math.pi, 48, endpoint=False)
    return np.stack([x + width * np.cos(angle), y + height * np.sin(angle)], 1)


def curve(corners: str, x: float = 0, y: float = 0, wide: float = 1, high: float = 1, closed: bool = True) -> Points:
    """Return a smooth line along corners, given in hundredths; a corner that is given twice stays sharp."""
    points: Points = dots(*map(float, corners.split())) * (wide / 100, high / 100) + np.array([x, y])
    for _ in range(4):  # cut the corners off
        after = np.roll(points, -1, 0)
        cut = np.stack([0.75 * points + 0.25 * after, 0.25 * points + 0.75 * after], 1).reshape(-1, 2)
        points = cut if closed else np.concatenate([points[:1], cut[:-2], points[-1:]])
    return points


def ridge(c: Canvas, level: float, height: float, waves: float) -> Points:
    """Return everything below a wavy line."""
    x, phase = np.linspace(-1.1, 1.1, 150), c.between(0, 6)
    y = level + height * np.sin(waves * x + phase) + 0.4 * height * np.sin(2.3 * waves * x + 2 * phase)
    return np.concatenate([np.stack([x, y], 1), dots(1.1, 1.1, -1.1, 1.1)])


def landscape(c: Canvas, level: float) -> None:
    """Paint a sky with clouds and perhaps a sun, and hills below a level."""
    c.gradient(c.pick("5fb0ee 7cc6fe 94c4ee b3a6ea 58b4d8"), c.pick("eef9ff fff0d6 ffe6da e2f7f0"))
    x, y, radius = c.between(-0.85, 1.4), c.between(-0.85, -0.55), c.between(0.1, 0.17)
    for ring, alpha in ((1.8, 0.3), (1.4, 0.3), (1, 1)):
        c.fill(oval(x, y, radius * ring, radius * ring), c.pick("fff0a8"), alpha=alpha)
    for _ in range(c.rng.integers(1, 5)):
        c.place(c.between(-1, 1), c.between(-0.85, 0), c.between(0.5, 1.1))
        for x in np.linspace(-0.2, 0.2, 5):
            c.fill(oval(x, c.between(-0.04, 0), 0.1, 0.11 - 0.25 * abs(x)), WHITE, 0.04)
    c.place()
    c.fill(ridge(c, level, 0.07, c.between(2, 4)), c.pick("a9cfa0 9fc5c1 b9c98d"))
    c.fill(ridge(c, level + 0.12, 0.07, c.between(2, 4)), c.pick("86b96b 7fae7a a3b85f"))


def meadow(c: Canvas, level: float, palette: str) -> None:
    """Paint grass with a few flowers."""
    green, blossom = c.pick(palette), c.pick("ffffff ffd84d f7a8c4 c9a7eb")
    c.fill(ridge(c, level, 0.03, c.between(1, 3)), green)
    for number in range(80):
        x, y = c.between(-1, 1), c.between(level + 0.1, 1.05)
        c.stroke(dots(x, y, x + c.between(-0.03, 0.03), y - c.between(0.04, 0.09)), green * c.between(0.75, 1.2))
        if number % 8 == 0:
            c.fill(oval(x + 0.1, y, 0.018, 0.016), blossom)


def house(c: Canvas) -> None:
    """Paint a house with a chimney on a meadow."""
    landscape(c, c.between(-0.05, 0.2))
    meadow(c, c.between(0.35, 0.5), "8fc15a 7db36a b5bf5e a8cf7a")
    c.place(c.between(-0.18, 0.18), c.between(0.5, 0.7), c.between(0.7, 1.15), c.between(-4, 4), c.rng.choice((-1, 1)))
    wide, high, peak = c.between(0.42, 0.6), c.between(0.5, 0.75), c.between(0.32, 0.5)
    chimney = wide * c.between(0.35, 0.65)
    for size in (0.05, 0.07, 0.09, 0.11):  # smoke
        c.fill(oval(chimney + 2 * size - 0.1, 0.13 - high - peak - 5 * size, size, size), WHITE, alpha=0.6)
    c.solid(curve(SQUARE, chimney, -high - peak / 2, 0.07, peak / 2 + 0.05), c.pick("a4584a 8c7b75"))
    c.solid(curve(SQUARE, 0, -high / 2, wide, high / 2), c.pick("fbe8c8 f6c9c0 cfe3ee fff7e8 f5d77c"), 0.1)
    roof, eaves, flat = c.pick("c8443a 9c4a33 54657d 3f7a6b"), wide + 0.1, c.between(0, 0.6) * wide
    c.solid(dots(-eaves, -high, -flat, -high - peak, flat, -high - peak, eaves, -high), roof)
    for row in (0.2, 0.4, 0.6, 0.8):
        reach = eaves + (flat - eaves) * row - 0.02
        c.stroke(dots(-reach, -high - peak * row, reach, -high - peak * row), roof * 0.8)
    door, frame = c.between(-0.07, 0.07), c.pick("ffffff 6b4a35 37628c")
    c.solid(curve("-11 0 -11 0 -12 -55 12 -55 11 0 11 0", door, 0, 1, high), c.pick("8a5a3c 3d7ea6 b5473c 4f8f5b"))
    for x, y in ((door - wide * 0.6, high * 0.55), (door + wide * 0.6, high * 0.55), (0, high + peak * 0.35)):
        c.solid(curve(SQUARE, x, -y, 0.085, 0.095), frame, 0)
        for pane in dots(-1, -1, 1, -1, -1, 1, 1, 1) * (0.038, 0.043):
            c.fill(curve(SQUARE, x + pane[0], pane[1] - y, 0.029, 0.034), c.pick("bfe3f5"))
    for x in (-wide, -wide, wide, wide):
        c.fill(oval(x + c.between(-0.13, 0.13), 0, 0.1, c.between(0.07, 0.13)), c.pick("5d9b4c 6fa85a"), 0.25)


def sailing_boat(c: Canvas) -> None:
    """Paint a boat with two sails on the sea."""
    level, far, near = c.between(0.2, 0.35), c.pick("7cc5d9 86b8e0 8fd0c8"), c.pick("1f6f9f 2a7f8e 2c5fa3")
    landscape(c, level - c.between(-0.2, 0.1))  # the hills are often below the horizon
    for depth in np.linspace(0, 1, 7):
        water = ridge(c, level + (1 - level) * depth**1.3, 0.004 + 0.015 * depth, c.between(9, 14))
        c.fill(water, far * (1 - depth) + near * depth)
    y, scale = level + c.between(0.2, 0.35), c.between(0.7, 1.08)
    c.place(c.between(-0.2, 0.2), y, scale, c.between(-7, 7), c.rng.choice((-1, 1)))
    wide, tall, sails = c.between(0.8, 1.1), c.between(1.05, 1.25), "ffffff fff3d6 f3b04c e4675a 5aa9c6"
    c.stroke(dots(0, -0.1, 0, -tall - 0.05), c.pick("6b4a35"), 0.03)
    c.solid(curve("3 -100 3 -100 28 -62 57 -22 57 -22 3 -22 3 -22", 0, 0, wide, tall), c.pick(sails))
    c.solid(curve("-3 -93 -3 -93 -25 -50 -50 -20 -50 -20 -3 -23 -3 -23", 0, 0, 1, tall), c.pick(sails))
    c.fill(dots(0, -tall - 0.04, -0.16, 0.01 - tall, 0, 0.06 - tall), c.pick("e4572e ffd84d 3d7ea6"))
    c.solid(curve("-72 -17 -72 -17 62 -15 62 -15 50 12 35 14 -35 14"), c.pick("b5473c 8a5a3c 2f5d8a ffffff d98e32"))
    c.stroke(dots(-0.66, -0.1, 0.57, -0.08), c.pick("ffffff ffd84d 333f55"), 0.04)
    c.place()
    for row in (0.06, 0.13, 0.2):
        water = ridge(c, y + row * scale, 0.014, c.between(13, 17))
        c.fill(water, near * 1.1, 0, alpha=0.4)
        c.stroke(water[:-2], WHITE, 0.01, alpha=0.4)


def sunflower(c: Canvas) -> None:
    """Paint a sunflower in a meadow or before a plain wall."""
    if c.number % 3:
        landscape(c, c.between(0.2, 0.8))
        meadow(c, c.between(0.5, 0.8), "8fc15a 7db36a a8b85f")
    else:
        c.gradient(c.pick("bfe0e2 f6dfc8 d6d3ee cde6c4"), c.pick("8fc0c9 e9b9a0 a9a5d6 94c08f"))
    x, y, scale = c.between(-0.2, 0.2), c.between(-0.3, -0.05), c.between(0.85, 1.15)
    c.place(x, y, scale, c.between(-10, 10))
    green, petal, disc = (c.pick(p) for p in ("5c9a3f 4b8b4a 7aa53f", "ffcf33 ffbe1f ffdd55 f7a823", "6b3f22 7a4a28"))
    c.stroke(curve("0 0 5 50 0 160", closed=False), green, 0.075)
    for side in (-1, 1):
        leaf = curve("0 0 0 0 20 -25 55 -20 62 -22 40 8", 0, c.between(0.7, 0.95), side, c.between(0.7, 1.2))
        c.solid(leaf, green, 0.25)
        c.stroke(leaf[[0, 60]], green * 0.75)
    count, reach, radius = int(c.rng.integers(15, 22)), c.between(0.9, 1.1), c.between(0.27, 0.34)
    for turn in range(2 * count):  # twice around: the second ring lies on the first, between its petals
        front = turn >= count
        c.place(x, y, scale * (0.9 if front else 1), 360 * (turn + 0.5 * front) / count + c.between(-4, 4))
        shape = curve("22 -5 40 -10 55 -1 58 0 55 1 40 10 22 5", wide=reach * c.between(0.92, 1.06))
        c.solid(shape, petal * (1 if front else 0.88), 0.1)
    c.place(x, y, scale)
    c.solid(oval(0, 0, radius, radius), disc)
    for seed in range(1, 130):
        away, angle = radius * 0.95 * math.sqrt(seed / 130), 2.39996 * seed  # the golden angle, as in real flowers
        c.fill(oval(away * math.cos(angle), away * math.sin(angle), 0.012, 0.012), disc * (0.6 if seed < 40 else 1.5))


def fish(c: Canvas) -> None:
    """Paint a fish under water."""
    c.gradient(c.pick("5fd0e0 58b7e8 6fd3c0"), c.pick("0f4c81 14606b 27408b"))
    for _ in range(5):
        c.fill(curve("0 -200 10 -200 30 200 -10 200", c.between(-1, 1)), WHITE, alpha=0.08)
        weed = curve("0 100 -7 70 7 40 -7 0", c.between(-1, 1), c.between(0, 0.6), closed=False)
        c.stroke(weed, c.pick("2f9e6e 4c9f50 b5588a 1d7a6b"), 0.045)
    c.fill(ridge(c, c.between(0.72, 0.86), 0.03, c.between(2, 5)), c.pick("e3cf9b d8b98a c9c7a8"))
    for radius in c.rng.uniform(0.015, 0.045, 9):
        c.fill(oval(c.between(-1, 1), c.between(-1, 0.6), radius, radius), c.pick("e8fbff"), 0.3, alpha=0.5)
    c.place(c.between(-0.1, 0.1), c.between(-0.2, 0.2), c.between(0.9, 1.15), c.between(-9, 9), c.rng.choice((-1, 1)))
    skin, fin = c.pick("ff8c42 f7b733 e85d75 f2e25c b388eb ff6f59"), c.pick("ffb347 ff5e5b ffe066 7b6cd9")
    high, band = c.between(0.28, 0.42), c.pick("ffffff fff1c9 2e4a7d c8443a")
    c.solid(curve("38 0 60 -12 85 -36 82 -20 70 0 82 20 85 36 60 12"), fin)
    c.solid(curve("-30 -70 -10 -165 25 -150 35 -50", high=high), fin)
    c.solid(curve("-5 70 5 160 30 145 25 50", high=high), fin)
    c.solid(curve("-68 2 -50 -75 -10 -125 30 -70 55 -30 55 30 30 70 -10 120 -50 80", high=high), skin, 0.28)
    for row, column in np.ndindex(9, 6):
        x, y = -0.18 + 0.11 * column + 0.055 * (row % 2), 0.09 * (row - 4)
        if abs(y) < high * (0.85 - 1.7 * (x + 0.1) ** 2):
            c.stroke(np.roll(oval(x, y, 0.05, 0.05), 12, 0)[:25], skin * 0.78)
    for x in (-0.22, 0.08, 0.34)[: c.number % 4]:
        c.fill(curve("-4 -85 5 -85 9 0 4 85 -5 85 0 0", x, 0, 1, high * (1.1 - 1.7 * (x + 0.1) ** 2)), band)
    c.solid(curve("-10 5 2 2 18 12 12 24 0 17"), fin)
    c.solid(oval(-0.43, -0.08, 0.075, 0.075), WHITE, 0)
    c.fill(oval(-0.44, -0.075, 0.042, 0.042), c.pick("1d2433"))
    c.stroke(curve("-61 7 -56 12 -49 10", closed=False), skin * 0.5)


def balloon(c: Canvas) -> None:
    """Paint a hot-air balloon in the sky."""
    landscape(c, c.between(0.6, 1))
    palettes = ("e4572e d7263d 2e86ab 7b4fa3 1b998b", "ffd84d fff3d6 ffa630 f7c1d0", "3a9d5d 2e5eaa")
    colours = [c.pick(palette) for palette in palettes[: 2 + c.number % 2]]
    c.place(c.between(-0.25, 0.25), c.between(-0.3, -0.1), c.between(0.75, 1), c.between(-6, 6))
    for x in (-1, -0.35, 0.35, 1):
        c.stroke(dots(0.17 * x, 0.6, 0.11 * x, 0.86), c.pick("5b4636"))
    down, panels, belt = np.linspace(-1, 1, 60), int(c.rng.integers(7, 12)), c.number % 3 == 0
    wide = np.where(down < 0, np.sqrt(1 - down**2), 1 - 0.76 * np.abs(down) ** 1.7) * 0.6
    for panel in range(panels):
        left, right = (-math.cos(math.pi * (panel + edge) / panels) for edge in (0, 1))
        sides = np.concatenate([[left * wide, 0.62 * down], [right * wide[::-1], 0.62 * down[::-1]]], 1).T
        light = 1 - 0.15 * max(0, left + right) - 0.05 * abs(left + right)
        c.solid(sides, colours[panel % len(colours)] * light)
        if belt:
            c.fill(sides[np.r_[26:36, 84:94]], colours[(panel + 1) % len(colours)] * light, 0)
    c.solid(curve("-12 86 -12 86 12 86 12 86 10 104 -10 104"), c.pick("a86f3c 8a5a3c c08a4e"), 0.3)


def mushroom(c: Canvas) -> None:
    """Paint two mushrooms in a forest or a clearing."""
    mist, bark = c.pick("c9d8b6 b7cfc4 d9cfae bcdcf0 f3dcc4"), c.pick("5d4a3a")
    c.gradient(mist, mist * 0.8)
    for depth in np.linspace(0.15, 0.75, 9)[: 2 + 3 * (c.number % 3)]:
        trunk = curve("0 -130 100 -130 90 30 150 70 -50 70", c.between(-1.1, 1), 0, 0.04 + 0.12 * depth)
        c.fill(trunk, mist * (1 - depth) + bark * depth)
    meadow(c, c.between(0.25, 0.5), "6f8f3f 5b7f4a 8a7a45 7b8c55")
    cap, stalk = c.pick("d7263d c8443a b5622e e89a3f 9c4a5a"), c.pick("fff6e3 f3e3c8 efe6da")
    x, y, scale, side = c.between(-0.25, 0), c.between(0.6, 0.8), c.between(0.8, 1.15), c.rng.choice((-1, 1))
    small = (side * (x + c.between(0.55, 0.9)), y - 0.05, scale * c.between(0.4, 0.55), side * 8)
    for where in (small, (side * x, y, scale, c.between(-8, 8))):
        c.place(*where)
        wide, high, tall = c.between(0.52, 0.7), c.between(0.42, 0.62), c.between(0.5, 0.65)
        c.solid(curve("-13 -100 13 -100 14 -50 22 2 10 20 -10 20 -22 2 -14 -50", high=tall), stalk)
        c.solid(oval(0, -tall, wide * 0.93, 0.1), stalk * 0.85)
        for gill in np.linspace(-0.85, 0.85, 15):
            c.stroke(dots(0.2 * gill, -tall, wide * gill, 0.09 * math.sqrt(1 - gill**2) - tall), stalk * 0.68, 0.01)
        c.solid(curve("-10 10 10 10 20 24 0 20 -20 24", 0, -tall), stalk)
        c.solid(np.minimum(oval(0, -tall, wide, high), [wide, 0.03 - tall]), cap, 0.3)
        for left, up in ((0, 62), (-45, 50), (47, 45), (-20, 25), (20, 20), (-70, 20), (72, 17), (22, 84), (-28, 82)):
            radius = c.between(0.045, 0.09) * (1.2 - abs(left) / 100)
            c.fill(oval(wide * left / 100, -tall - high * up / 100, radius, radius * 0.8), WHITE * 0.98)
    c.place()
    for _ in range(14):
        x, bend = c.between(-0.9, 0.9), c.between(-0.07, 0.07)
        c.stroke(dots(x, y + 0.15, x, y + 0.05, x + bend, y - c.between(0, 0.1)), c.pick("5f8f3a 7aa54a 4d7a3f"), 0.02)


KINDS: tuple[str, ...] = ("house", "sailing boat", "sunflower", "fish", "hot-air balloon", "mushroom")
PAINTERS = dict(zip(KINDS, (house, sailing_boat, sunflower, fish, balloon, mushroom), strict=True))
