"""What kind of document it is, and a summary in its own words."""

from __future__ import annotations

import re
from dataclasses import dataclass

from deploy.local.workspace.stand_in.text import Document, squeezed

# In order: the first kind whose words stand in the head of the document wins over weaker hints further down.
_KINDS = {
    "credit note": r"credit (?:note|memo)|gutschrift|nota de crédito|avoir",
    "invoice": r"invoice|rechnung(?!sempf)|factura\b|facture|fattura|فاتورة",
    "purchase order": r"purchase order|bestellung|orden de compra|bon de commande",
    "delivery note": r"delivery note|packing slip|lieferschein|albarán",
    "receipt": r"receipt|quittung|kassenbon|recibo|reçu|إيصال",
    "quotation": r"quotation|\bquote\b|angebot|presupuesto|devis",
    "account statement": r"(?:account|bank) statement|statement of account|kontoauszug|extracto (?:de cuenta|bancario)"
    r"|estado de cuenta|relevé de compte|كشف حساب",
    "lease": r"(?:lease|rental|tenancy) agreement|mietvertrag|contrato de arrendamiento",
    "contract": r"agreement|contract\b|vertrag|contrato|contrat\b|عقد",
    "court transcript": r"in the supreme court|oral argument|transcript of proceedings|official transcript",
    "judgment": r"judgment|urteil|sentencia",
    "notice of proposed rulemaking": r"notice of proposed rulemaking",
    "rule": r"(?:final|interim|proposed) rule\b",
    "election results": r"precinct bulletin|election results",
    "certificate": r"certificate|zertifikat|bescheinigung|certificado",
    "application form": r"application form|antrag\b|solicitud",
    "price report": r"(?:price|market) (?:report|news)|round-?up",
    "report": r"\breport\b|bericht|informe|rapport|تقرير",
    "minutes": r"minutes of|protokoll|acta de",
    "letter": r"^(?:dear|sehr geehrter?|estimad[oa])\b",
    "notice": r"\bnotice\b(?! date)|mitteilung|aviso",
    "memorandum": r"memorandum|\bmemo\b",
}
_PATTERNS = {kind: re.compile(pattern, re.IGNORECASE | re.MULTILINE) for kind, pattern in _KINDS.items()}
_ACTION = re.compile(r"(?m)^ACTION:\s*(?P<action>.+(?:\n(?![A-Z]{4,}:).+)?)$")
_SUMMARY = re.compile(
    r"(?ms)^(?:SUMMARY|ABSTRACT|ZUSAMMENFASSUNG|RESUMEN)\b\s*[:.]?\s*(?P<summary>.+?)(?=^[A-Z]{4,}[A-Z ]*:|\Z)"
)
_SENTENCE = re.compile(r"[^.!?\n][^.!?]{20,400}?[.!?](?=\s|$)", re.DOTALL)
_NUMBER = re.compile(r"(?<!\S)\d[\d.,/]*(?!\S)")
_TABLE_COLUMNS = 3
_TABLE_ROWS = 10
_HEAD_CHARACTERS = 700
_SUMMARY_CHARACTERS = 400
_FEWEST_CHARACTERS = 30
_SUMMARY_LINES = 4
_TITLE_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Quoted:
    """A value and the words of the document it rests on."""

    value: str
    evidence: str


def find_kind(document: Document) -> Quoted | None:
    """The kind of document, from its own declaration, its head, or hints further down."""
    action = _ACTION.search(document.text)
    if action is not None:
        value = re.sub(r"\s*\([A-Z]+\)", "", squeezed(action["action"])).strip(" .").lower()
        return Quoted(value, document.quote(action.start(), action.end()))
    greeting = _PATTERNS["letter"].search(document.text)
    heading = _earliest(document, _HEAD_CHARACTERS)
    if greeting is not None and (heading is None or greeting.start() < heading[1].start()):
        heading = ("letter", greeting)
    if heading is None:
        heading = _earliest(document, len(document.text)) if len(document.text) < 5 * _HEAD_CHARACTERS else None
    if heading is None:
        rows = [index for index, line in enumerate(document.lines) if len(_NUMBER.findall(line.text)) >= _TABLE_COLUMNS]
        return Quoted("table", document.quote_line(rows[0])) if len(rows) >= _TABLE_ROWS else None
    kind, match = heading
    return Quoted(kind, document.quote_line(document.index_at(match.start())))


def find_summary(document: Document) -> Quoted | None:
    """A section that calls itself a summary, else the title and the first sentences; nothing is rephrased."""
    section = _SUMMARY.search(document.text)
    start = section.start("summary") if section else 0
    sentences = list(_SENTENCE.finditer(document.text, start, start + 4 * _SUMMARY_CHARACTERS))[:2]
    if section is not None and sentences:
        return _quoted(document, sentences[0].start(), sentences[-1].end())
    if not document.lines or len(document.text.strip()) < _FEWEST_CHARACTERS:
        return None
    wordy = [line for line in document.lines if _is_wordy(line.text)]
    if not wordy:
        return None
    if len(wordy[0].text) > _TITLE_CHARACTERS and (
        prose := list(_SENTENCE.finditer(document.text, wordy[0].start, wordy[0].start + 2 * _SUMMARY_CHARACTERS))
    ):
        return _quoted(document, wordy[0].start, prose[min(2, len(prose)) - 1].end())
    # It begins with a title, not with prose: the first lines, each as it stands.
    lines = [squeezed(document.quote(line.start, line.end)) for line in wordy[:_SUMMARY_LINES]]
    return Quoted(_shortened(" · ".join(lines)), document.quote(wordy[0].start, wordy[0].end))


def _is_wordy(text: str) -> bool:
    letters, digits = sum(map(str.isalpha, text)), sum(map(str.isdigit, text))
    return letters > 2 * digits and re.search(r"[^\W\d_]{3}", text) is not None


def _quoted(document: Document, start: int, end: int) -> Quoted:
    return Quoted(_shortened(squeezed(document.original[start:end])), document.quote(start, end))


def _shortened(text: str) -> str:
    return text if len(text) <= _SUMMARY_CHARACTERS else text[:_SUMMARY_CHARACTERS].rsplit(" ", 1)[0] + " …"


def _earliest(document: Document, until: int) -> tuple[str, re.Match[str]] | None:
    """The kind named first; of kinds named on the same line the one that stands first in the table."""
    best: tuple[int, int, str, re.Match[str]] | None = None
    for order, (kind, pattern) in enumerate(_PATTERNS.items()):
        match = pattern.search(document.text, 0, until)
        if match is None:
            continue
        key = (document.index_at(match.start()), order)
        if best is None or key < best[:2]:
            best = (*key, kind, match)
    return None if best is None else (best[2], best[3])
