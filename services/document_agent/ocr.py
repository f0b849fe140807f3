"""Recognition of pictures of text: RapidOCR on onnxruntime, one engine per process, loaded when first needed.

Measured on two shared cores: one page of 47 lines takes about 4 s (8 s with the engine's defaults), from
what this room does: 150 dots per inch (more costs time and gains nothing), detection at 1,152 pixels,
long lines squeezed by a fifth (the recogniser's time grows with width; its errors do not before a third),
and short pieces in batches of their own width instead of one wide one. Tesseract took four to five times as long.

A page has a deadline: lines are recognised in small batches, and when it passes, the lines read so far
are kept and the page says so. Sideways scans are found by the shape of their lines (upright text has lines wider
than high); upside down is found by reading a few lines both ways and believing the higher score.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from services.document_agent.messages import Line
from services.document_agent.text import Run, columns_of, rows_of, rows_text
from shared.contract.text import clean_text

Image = npt.NDArray[np.uint8]

DOTS_PER_INCH = 150
_DETECTION_PIXELS = 1_152
_WIDE = 8.0
_SQUEEZE = 0.8
_BATCH = 6
_PROBES = 5
LOWEST_SCORE = 0.6
"""Lines below are not text but texture: they are dropped, never stored."""


@dataclass(slots=True)
class Recognition:
    """What was read from a picture. `turned` is how far it was turned clockwise to be upright."""

    text: str = ""
    lines: list[Line] = field(default_factory=list)
    turned: int = 0
    is_complete: bool = True
    dropped: int = 0
    cleaned: int = 0


@dataclass(frozen=True, slots=True)
class _Piece:
    crop: Image
    box: tuple[float, float, float, float]


class Recogniser:
    """One engine of this process."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._engine: Any = None

    def read(
        self, image: Image, *, deadline: float, believe: Callable[[list[Line]], bool] | None = None
    ) -> Recognition | None:
        """The text of a picture (height, width, 3) until the deadline (monotonic seconds).

        `believe` is shown the first few lines and may call the reading off, which gives None.
        """
        if min(image.shape[:2]) < 10:
            return Recognition()
        pieces, turned = self._upright(image)
        if not pieces:
            return Recognition()
        if believe is not None:
            sample = sorted(pieces, key=lambda piece: -piece.crop.shape[1])[:_PROBES]
            if believe([line for _, line in self._recognise(sample, deadline)[0]]):
                return None
        read, is_complete = self._recognise(pieces, deadline)
        return _arranged(read, image.shape[0], turned, is_complete=is_complete)

    def _loaded(self) -> Any:
        if self._engine is None:
            from rapidocr import RapidOCR

            engine = RapidOCR(
                params={
                    "Global.log_level": "error",
                    "EngineConfig.onnxruntime.intra_op_num_threads": self._threads,
                    "EngineConfig.onnxruntime.inter_op_num_threads": 1,
                    "Det.limit_side_len": _DETECTION_PIXELS,
                    "Det.limit_type": "max",
                }
            )
            engine._load_det_model()  # noqa: SLF001 - the public call runs all steps at once, without a deadline
            engine._load_rec_model()  # noqa: SLF001
            engine.text_rec.rec_image_shape = [3, 48, 160]
            for model in (engine.text_det.session, engine.text_rec.session):
                model.session = _patient(model.session, self._threads)
            self._engine = engine
        return self._engine

    def _detect(self, image: Image) -> list[_Piece]:
        engine = self._loaded()
        found = engine.text_det(image)
        if found.boxes is None or len(found.boxes) == 0:
            return []
        crops = engine.crop_text_regions(image, found.boxes)
        pairs = zip(crops, found.boxes, strict=True)
        return [_Piece(crop, _bounds(box)) for crop, box in pairs if min(crop.shape[:2]) >= 3]

    def _upright(self, image: Image) -> tuple[list[_Piece], int]:
        """The lines of the picture after turning it, and by how many degrees clockwise that was."""
        pieces = self._detect(image)
        if not pieces:
            return [], 0
        turned = 0
        upright = sum(_is_lying(piece.box) for piece in pieces)
        standing = sum(_is_standing(piece.box) for piece in pieces)
        if standing > upright:
            image, turned = np.ascontiguousarray(np.rot90(image, -1)), 90
            pieces = self._detect(image)
        if pieces and self._is_upside_down(pieces):
            image, turned = np.ascontiguousarray(np.rot90(image, 2)), turned + 180
            pieces = self._detect(image)
        return pieces, turned

    def _is_upside_down(self, pieces: list[_Piece]) -> bool:
        widest = sorted(pieces, key=lambda piece: -piece.crop.shape[1])[:_PROBES]
        flipped = [_Piece(np.ascontiguousarray(np.rot90(piece.crop, 2)), piece.box) for piece in widest]
        endless = float("inf")
        return _mean(self._recognise(flipped, endless)[0]) > _mean(self._recognise(widest, endless)[0]) + 0.05

    def _recognise(self, pieces: list[_Piece], deadline: float) -> tuple[list[tuple[_Piece, Line]], bool]:
        """Each piece with what stands on it, and whether all were read before the deadline."""
        from rapidocr.ch_ppocr_rec.typings import TextRecInput

        engine = self._loaded()
        crops = [(piece, _squeezed(piece.crop)) for piece in pieces]
        crops.sort(key=lambda each: each[1].shape[1] / each[1].shape[0])
        read: list[tuple[_Piece, Line]] = []
        for start in range(0, len(crops), _BATCH):
            if time.monotonic() > deadline:
                return read, False
            batch = crops[start : start + _BATCH]
            answer = engine.text_rec(TextRecInput(img=[crop for _, crop in batch]))
            for (piece, _), text, score in zip(batch, answer.txts, answer.scores, strict=True):
                read.append((piece, Line(text, float(score))))
        return read, True


def _patient(session: Any, threads: int) -> Any:
    """The same model without threads that spin while they wait: beside other work that took twice as long."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level, options.enable_cpu_mem_arena = 4, False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(session._model_path, options, providers=["CPUExecutionProvider"])  # noqa: SLF001


def _arranged(read: list[tuple[_Piece, Line]], height: int, turned: int, *, is_complete: bool) -> Recognition:
    kept = [(piece, line) for piece, line in read if line.score >= LOWEST_SCORE and line.text.strip()]
    runs, lines, cleaned = [], [], 0
    for piece, line in kept:
        text, dropped = clean_text(" ".join(line.text.split()))
        cleaned += dropped
        left, top, right, bottom = piece.box
        runs.append(Run(left, height - bottom, right, height - top, text))
        lines.append(Line(text, round(line.score, 4)))
    text = "\n".join(rows_text(rows_of(column)) for column in columns_of(runs)) if runs else ""
    return Recognition(text, lines, turned, is_complete, len(read) - len(kept), cleaned)


def _mean(read: list[tuple[_Piece, Line]]) -> float:
    return sum(line.score for _, line in read) / len(read) if read else 0.0


def _bounds(box: Any) -> tuple[float, float, float, float]:
    """Left, top, right, bottom of a detected quadrangle, in pixels from the top left."""
    return float(box[:, 0].min()), float(box[:, 1].min()), float(box[:, 0].max()), float(box[:, 1].max())


def _is_lying(box: tuple[float, float, float, float]) -> bool:
    return box[2] - box[0] > 1.5 * (box[3] - box[1])


def _is_standing(box: tuple[float, float, float, float]) -> bool:
    return box[3] - box[1] > 1.5 * (box[2] - box[0])


def _squeezed(crop: Image) -> Image:
    height, width = crop.shape[:2]
    if width <= _WIDE * height:
        return crop
    import cv2

    return np.asarray(cv2.resize(crop, (int(width * _SQUEEZE), height), interpolation=cv2.INTER_AREA), dtype=np.uint8)
