"""Who is named in the document, and in which role."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from deploy.local.workspace.stand_in.text import Document, squeezed

_ROLES = {
    "seller": "seller|vendor|supplier|merchant|from|issued by|bill from|verkäufer|lieferant|rechnungssteller|von"
    "|vendedor|proveedor|emisor|fournisseur|vendeur|البائع|المورد",
    "buyer": "bill(?:ed)? to|invoice(?:d)? to|sold to|buyer|customer|client|purchaser|käufer|kunde|rechnungsempfänger"
    "|rechnung an|comprador|cliente|facturar a|acheteur|facturé à|المشتري|العميل",
    "ship to": "ship to|deliver(?:y)? to|consignee|lieferadresse|enviar a",
    "sender": "sender|absender|remitente|expéditeur|المرسل",
    "recipient": "recipient|to|attn|attention|empfänger|an|destinatario|destinataire|المرسل إليه",
    "account holder": "account holder|account name|account owner|kontoinhaber|titular(?: de la cuenta)?|titulaire"
    "|صاحب الحساب",
    "bank": "bank|bank name|kreditinstitut|banco|البنك",
    "landlord": "landlord|lessor|vermieter|arrendador|bailleur",
    "tenant": "tenant|lessee|mieter|arrendatario|locataire",
    "client": "auftraggeber|principal",
    "contractor": "contractor|service provider|auftragnehmer|contratista|prestataire",
    "employer": "employer|arbeitgeber|empleador|employeur",
    "employee": "employee|arbeitnehmer|empleado|employé",
    "licensor": "licensor|lizenzgeber",
    "licensee": "licensee|lizenznehmer",
    "lender": "lender|darlehensgeber|prestamista",
    "borrower": "borrower|darlehensnehmer|prestatario",
    "payee": "payee|pay to|zahlungsempfänger|beneficiary|beneficiario",
    "patient": "patient|paciente",
    "insured": "insured|policyholder|versicherungsnehmer|asegurado",
    "agency": "agency",
    "company": "company|firma|empresa|société",
}  # fmt: skip
_ROLE_OF_LABEL = [(re.compile(pattern, re.IGNORECASE), role) for role, pattern in _ROLES.items()]
_LABELLED = re.compile(
    rf"^(?P<label>{'|'.join(_ROLES.values())})(?:\s+name)?\s*(?P<colon>:)\s*(?P<value>.*)$", re.IGNORECASE
)
# Headings above a block of address lines stand alone; the short prepositions among them need their colon.
_HEADING = re.compile(
    r"^(?:bill(?:ed)? to|sold to|ship to|seller|buyer|customer|client|vendor|supplier|rechnungsempfänger|rechnung an"
    r"|lieferant|verkäufer|käufer|facturar a|cliente|proveedor|emisor|sender|recipient)$",
    re.IGNORECASE,
)
# ("Provider"), (hereinafter "Client"), (the Lessor): the role by which the contract goes on to call a party.
_DEFINED = (
    r"\s*\(\s*(?:the |hereinafter |nachfolgend |en adelante )*[\"“„'«]?"
    r"(?P<{role}>[\w \-]{{2,30}})"
    r"[\"”“'»]?[^()]{{0,30}}\)"
)  # fmt: skip
_PARTY = r"(?P<{name}>[^\n;:]{{3,120}}?(?:\n[^\n;:]{{1,80}}?)??)"
_BETWEEN = re.compile(
    r"\b(?:by and between|between|zwischen|entre)\s+(?:the\s+)?"
    + _PARTY.format(name="first")
    + f"(?:{_DEFINED.format(role='role1')})?"
    + r",?\s+(?:and|und|y)\s+"
    + _PARTY.format(name="second")
    + f"(?:{_DEFINED.format(role='role2')}|(?=[.;:\\n]))",
    re.IGNORECASE,
)
_CONTRACT = re.compile(
    r"(?i)\b(?:agreement|contract|lease|vertrag|geschlossen|vereinbarung|contrato|acuerdo|celebra\w*|contrat)\b|vertrag\b"
)
_CONTRACT_CHARACTERS = 250
_VERSUS = re.compile(r"(?m)^\s*(?:v\.|vs\.?|versus)(?=\s|$)")
_COURT_ROLE = re.compile(
    r"(?i)\b(petitioners?|respondents?|plaintiffs?|defendants?|appellants?|appellees?|applicants?|claimants?)\b"
)
_COUNSEL = re.compile(
    r"(?P<name>[A-Z][A-Za-z.'\- ]{3,50}),\s*ESQ\.?,?[^;]{0,160}?;?\s*on\s+behalf\s+of\s+(?:the\s+)?(?P<side>\w+)",
    re.DOTALL,
)
_CLOSING = re.compile(
    r"(?i)^(?:(?:yours )?(?:sincerely|faithfully|truly)(?: yours)?|(?:best|kind|warm) regards|regards"
    r"|mit freundlichen grüßen|hochachtungsvoll|atentamente|cordialement|saludos cordiales)[,.]?$"
)
_GREETING = re.compile(r"(?i)^(?:dear|sehr geehrter?|liebe[r]?|estimad[oa]|cher|chère)\s+(?P<name>[^,:\n]{2,60})[,:]?$")
_NOBODY = re.compile(
    r"(?i)\b(?:sir|madam|damen und herren|all|team|colleagues?|hiring manager|señor(?:es)?|to whom it may concern)\b"
)
_ORGANISATION = re.compile(
    r"\b(?:Inc|LLC|L\.L\.C|Ltd|Limited|GmbH|AG|KG|e\.K|S\.?A\.?|S\.?L\.?|SARL|SAS|B\.?V|N\.?V|Corp|Corporation|PLC|plc"
    r"|LLP|Oy|AB|A/S|Bank|Sparkasse|University|Universität|Department|Ministry|Agency)\b\.?|شركة|بنك"
)
_NOT_A_NAME = re.compile(r"(?i)^(?:n/?a|none|page|date|invoice|total|the|und|and)?\W*$|@|https?://")
_LONGEST_NAME = 100
_LETTERHEAD_LINES = 4


@dataclass(frozen=True, slots=True)
class Party:
    """A person or organisation, its role, and where both were read."""

    name: str
    role: str | None
    start: int
    end: int


def find_parties(document: Document) -> list[Party]:
    """Every party some rule recognises, each once, in reading order."""
    found = [*_labelled(document), *_between(document), *_in_court(document), *_in_letter(document)]
    if not any(party.role in {"seller", "sender", "agency", "bank"} for party in found):
        found.extend(_letterhead(document, {party.name.lower() for party in found}))
    unique: dict[str, Party] = {}
    for party in sorted(found, key=lambda one: one.start):
        # The same agency with and without its department in brackets is one party.
        unique.setdefault(party.name.partition(" (")[0].lower(), party)
    return list(unique.values())


def _labelled(document: Document) -> Iterator[Party]:
    for index, line in enumerate(document.lines):
        match = _LABELLED.match(line.text)
        if match is None and not _HEADING.match(line.text):
            continue
        label = match["label"] if match else line.text
        role = _role(label)
        start, value = (line.start + match.start("value"), match["value"]) if match else (line.end, "")
        end = line.end
        if role == "agency":
            end = _end_of_section(document, index)
            value = squeezed(document.text[start:end])
        elif not value and index + 1 < len(document.lines):
            following = document.lines[index + 1]
            start, end, value = following.start, following.end, following.text
            if following.text.endswith(":"):
                continue
        name = _name(value)
        if name:
            yield Party(name, role, line.start, end)


def _role(label: str) -> str | None:
    return next((role for pattern, role in _ROLE_OF_LABEL if pattern.fullmatch(label.strip())), label.strip().lower())


def _end_of_section(document: Document, index: int) -> int:
    """A section ends before the next line that begins with a label in capitals."""
    for line in document.lines[index + 1 : index + 6]:
        if re.match(r"[A-Z][A-Z ]{3,}:", line.text):
            return line.start
    return document.lines[index].end


def _between(document: Document) -> Iterator[Party]:
    for match in _BETWEEN.finditer(document.text):
        context = document.text[max(0, match.start() - _CONTRACT_CHARACTERS) : match.end() + _CONTRACT_CHARACTERS]
        if not _CONTRACT.search(context):
            continue
        for name_group, role_group in (("first", "role1"), ("second", "role2")):
            name = _name(match[name_group])
            if name and _is_proper(name) and not name.lower().endswith((" or", " and")):
                role = match[role_group]
                yield Party(name, role.strip().lower() if role else "party", *match.span())


def _in_court(document: Document) -> Iterator[Party]:
    for match in _VERSUS.finditer(document.text):
        index = document.index_at(match.end())
        before = _side(document, range(index - 1, max(-1, index - 5), -1))
        after = _side(document, range(index + 1, min(len(document.lines), index + 5)))
        for side, other, default in ((before, after, "claimant"), (after, before, "opposing party")):
            if side is not None:
                name, role, start, end = side
                role = role or _opposite(other[1] if other else None) or default
                yield Party(name, role, start, end)
    for counsel in _COUNSEL.finditer(document.text):
        advocate = _name(counsel["name"])
        if advocate:
            yield Party(advocate, f"counsel for the {counsel['side'].lower()}", *counsel.span())


_OPPOSITES = {"petitioner": "respondent", "plaintiff": "defendant", "appellant": "appellee", "applicant": "respondent",
              "claimant": "respondent"}  # fmt: skip


def _opposite(role: str | None) -> str | None:
    pairs = _OPPOSITES | {other: one for one, other in _OPPOSITES.items() if one not in {"applicant", "claimant"}}
    return pairs.get(role or "")


def _side(document: Document, indexes: range) -> tuple[str, str | None, int, int] | None:
    """The party on one side of the "v.": lines up to a rule or a heading, without the frame of the caption."""
    role: str | None = None
    kept: list[int] = []
    for index in indexes:
        text = re.sub(r"\s*:\s*(?:No\..*)?$", "", document.lines[index].text).strip()
        if not re.search(r"[A-Za-z]{2}", text) or re.search(r"(?i)\bcourt\b|^\W*x$|^No\.", text):
            break
        if (word := _COURT_ROLE.search(text)) and len(text.split()) <= 2:
            role = word[1].lower().rstrip("s")
            continue
        if kept and indexes.step > 0:
            break
        kept.append(index)
    if not kept:
        return None
    kept.sort()
    texts = [re.sub(r"\s*:\s*$", "", document.lines[index].text).strip() for index in kept]
    party = _name(" ".join(texts))
    if party is None:
        return None
    return party, role, document.lines[kept[0]].start, document.lines[kept[-1]].end


def _in_letter(document: Document) -> Iterator[Party]:
    for index, line in enumerate(document.lines):
        greeting = _GREETING.match(line.text)
        if greeting and not _NOBODY.search(greeting["name"]) and (name := _name(greeting["name"])):
            yield Party(name, "recipient", line.start, line.end)
        if _CLOSING.match(line.text) and index + 1 < len(document.lines):
            following = document.lines[index + 1]
            name = _name(following.text)
            if name and len(name.split()) <= 5 and _is_proper(name):
                yield Party(name, "sender", line.start, following.end)


def _letterhead(document: Document, known: set[str]) -> Iterator[Party]:
    for line in document.lines[:_LETTERHEAD_LINES]:
        name = _name(line.text)
        if name and _ORGANISATION.search(name) and len(name.split()) <= 7 and name.lower() not in known:
            yield Party(name, "issuer", line.start, line.end)
            return


def _name(text: str) -> str | None:
    """The name at the beginning of a value: without address, definition and trailing signs; None if there is none."""
    name = squeezed(re.split(r"\s{3,}|\t|;", text.strip())[0])
    name = re.split(r",\s+(?:\d|a |an |with |having |located |residing |whose |vertreten |con |dated )", name)[0]
    name = re.sub(r"\s*\((?:the|hereinafter|nachfolgend|en adelante)\b[^)]*\)?", "", name, flags=re.IGNORECASE)
    name = re.sub(r"^(?:the|den|der|die)\s+(?=[A-Z])", "", name).strip(" ,:;\"“”„'*")
    if name.endswith(".") and not re.search(r"\b(?:Inc|Ltd|Co|Corp|Jr|Sr|Esq|[A-Z](?:\.[A-Z])*)\.$", name):
        name = name.rstrip(".")
    if len(name) > _LONGEST_NAME or not re.search(r"[^\W\d_]{2}", name) or _NOT_A_NAME.search(name):
        return None
    return name


def _is_proper(name: str) -> bool:
    first = next((character for character in name if character.isalpha()), "")
    return first.isupper() or not first.isascii()
