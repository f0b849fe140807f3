"""What the rule-based stand-in reads out of documents, and that it never says more than they do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.local.workspace.stand_in.answer import answer
from deploy.local.workspace.stand_in.dates import find_dates
from deploy.local.workspace.stand_in.money import find_amounts, parse_number
from deploy.local.workspace.stand_in.text import Document

ENGLISH_INVOICE = """INVOICE
Northwind Traders Ltd
12 Harbour Street, Bristol BS1 4QA
Invoice number: INV-2024-0042
Invoice date: 15 March 2024
Due date: 14 April 2024
Bill to:
Acme Corporation
Description Qty Unit price Amount
Consulting services 10 £150.00 £1,500.00
Travel expenses 1 £220.50 £220.50
Subtotal £1,720.50
VAT 20% £344.10
Total due £2,064.60"""
GERMAN_INVOICE = """Rechnung
Müller & Söhne GmbH
Rechnungsdatum: 03.04.2024
Rechnungsempfänger: Bäckerei Krüger KG
1 Wartung Ofen 2 180,00 € 360,00 €
Zwischensumme 1.409,90 €
Gesamtbetrag 1.677,78 €
Zahlbar bis 3. Mai 2024"""
SPANISH_INVOICE = """FACTURA
Proveedor: Aceites del Sur S.L.
Cliente: Restaurante La Mar
Fecha: 7 de marzo de 2024
Importe total 348,48 €"""
ARABIC_INVOICE = """فاتورة
البائع: شركة النور للتجارة
المشتري: مؤسسة الأمل
التاريخ: ١٥ مارس ٢٠٢٤
المجموع: ١٬٢٥٠٫٥٠ ر.س"""
CONTRACT = """SERVICE AGREEMENT

This Service Agreement ("Agreement") is made on 1 February 2024 between Blue River Analytics Inc. ("Provider") and
Harbor Logistics LLC, a company with offices in Boston ("Client").

1. Term. The Agreement starts on 1 March 2024 and terminates on 28 February 2025.
2. Fees. The Client pays USD 4,500.00 per month.
3. Deposit: $9,000.00"""
STATEMENT = """First Harbor Bank
Account statement
Account holder: Maria Gonzalez
Statement period: 01/02/2024 to 29/02/2024
Currency: EUR
Date Description Debit Credit Balance
01/02/2024 Opening balance 1,250.00
05/02/2024 Rent 800.00 450.00
Closing balance 2,850.00"""
NOTICE = """DEPARTMENT OF TRANSPORTATION \r
AGENCY: Federal Aviation \r
Administration (FAA), DOT. \r
ACTION: Notice of proposed rulemaking \r
(NPRM). \r
SUMMARY: The FAA proposes to \r
supersede an airworthiness directive. This proposed AD would require a new \r
manual. \r
DATES: The FAA must receive comments \r
on this proposed AD by September 21, \r
2020. \r
"""
TRIAL = """IN THE SUPREME COURT OF THE UNITED STATES
- - - - - - - - - x
MICHAEL A. KNOWLES, :
WARDEN, :
 Petitioner :
 v. : No. 07-1315
ALEXANDRE MIRZAYANCE. :
- - - - - - - - - x
 Tuesday, January 13, 2009
STEVEN E. MERCER, ESQ., Deputy Attorney General; on behalf of the Petitioner."""
PRICES = """Weekly Energy Round-Up
Ethanol ($/gal)
Iowa 1.35 - 1.42 1.38 - 1.43 1.27 - 1.35 Iowa Ethanol
Wisconsin unq unq 1.27 - 1.34
Crude Oil (cents/lb)
Indiana/Ohio 30.92 31.17"""
LETTER = """Hamburg, 12. Juni 2023
Sehr geehrte Frau Schneider,
hiermit kündige ich meinen Mietvertrag. Bitte überweisen Sie die Kaution von 1.200,00 EUR.
Mit freundlichen Grüßen
Hannah Weber"""


def read(text: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"<document>\n{text}\n</document>"}]
    found = json.loads(answer(messages, {"json_schema": {"schema": schema}} if schema else {}))
    assert isinstance(found, dict)
    return found


def pairs(items: list[dict[str, Any]], *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(item[key] for key in keys) for item in items]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (ENGLISH_INVOICE, "invoice"),
        (GERMAN_INVOICE, "invoice"),
        (SPANISH_INVOICE, "invoice"),
        (ARABIC_INVOICE, "invoice"),
        (CONTRACT, "contract"),
        (STATEMENT, "account statement"),
        (NOTICE, "notice of proposed rulemaking"),
        (TRIAL, "court transcript"),
        (PRICES, "price report"),
        (LETTER, "letter"),
        ("Lorem ipsum dolor sit amet, consetetur sadipscing elitr.", None),
    ],
)
def test_kinds(text: str, kind: str | None) -> None:
    assert read(text)["document_type"] == kind


@pytest.mark.parametrize(
    ("text", "parties"),
    [
        (ENGLISH_INVOICE, [("Northwind Traders Ltd", "issuer"), ("Acme Corporation", "buyer")]),
        (GERMAN_INVOICE, [("Müller & Söhne GmbH", "issuer"), ("Bäckerei Krüger KG", "buyer")]),
        (SPANISH_INVOICE, [("Aceites del Sur S.L.", "seller"), ("Restaurante La Mar", "buyer")]),
        (ARABIC_INVOICE, [("شركة النور للتجارة", "seller"), ("مؤسسة الأمل", "buyer")]),
        (CONTRACT, [("Blue River Analytics Inc.", "provider"), ("Harbor Logistics LLC", "client")]),
        (STATEMENT, [("First Harbor Bank", "issuer"), ("Maria Gonzalez", "account holder")]),
        (NOTICE, [("Federal Aviation Administration (FAA), DOT", "agency")]),
        (
            TRIAL,
            [
                ("MICHAEL A. KNOWLES, WARDEN", "petitioner"),
                ("ALEXANDRE MIRZAYANCE", "respondent"),
                ("STEVEN E. MERCER", "counsel for the petitioner"),
            ],
        ),
        (LETTER, [("Frau Schneider", "recipient"), ("Hannah Weber", "sender")]),
        ("the relationship between the national Government and the States, or on power.", []),
    ],
)
def test_parties(text: str, parties: list[tuple[str, str]]) -> None:
    assert pairs(read(text)["parties"], "name", "role") == parties


@pytest.mark.parametrize(
    ("text", "dates"),
    [
        (ENGLISH_INVOICE, [("Invoice date", "2024-03-15"), ("Due date", "2024-04-14")]),
        (GERMAN_INVOICE, [("Rechnungsdatum", "2024-04-03"), ("Zahlbar bis", "2024-05-03")]),
        (SPANISH_INVOICE, [("Fecha", "2024-03-07")]),
        (ARABIC_INVOICE, [("التاريخ", "2024-03-15")]),
        (CONTRACT, [("date of document", "2024-02-01"), ("start date", "2024-03-01"), ("end date", "2025-02-28")]),
        (NOTICE, [("comments due by", "2020-09-21")]),
        (TRIAL, [("date", "2009-01-13")]),
        (LETTER, [("date", "2023-06-12")]),
    ],
)
def test_dates(text: str, dates: list[tuple[str, str]]) -> None:
    assert pairs(read(text)["dates"], "label", "date") == dates


@pytest.mark.parametrize(
    ("text", "totals"),
    [
        (ENGLISH_INVOICE, [("Subtotal", "1720.50", "GBP"), ("Total due", "2064.60", "GBP")]),
        (GERMAN_INVOICE, [("Zwischensumme", "1409.90", "EUR"), ("Gesamtbetrag", "1677.78", "EUR")]),
        (SPANISH_INVOICE, [("Importe total", "348.48", "EUR")]),
        (ARABIC_INVOICE, [("المجموع", "1250.50", "SAR")]),
        (STATEMENT, [("Opening balance", "1250.00", "EUR"), ("Closing balance", "2850.00", "EUR")]),
        (CONTRACT, []),
        ("Name Permit Totals\nAlabama 18,870 71,137\nTotals 804,006 2,236,457", [("Totals", "2236457", None)]),
    ],
)
def test_totals(text: str, totals: list[tuple[str, str, str | None]]) -> None:
    assert pairs(read(text)["totals"], "label", "value", "currency") == totals


def test_amounts_carry_the_label_of_their_row() -> None:
    assert pairs(read(ENGLISH_INVOICE)["amounts"], "label", "value") == [
        ("Consulting services", "150.00"),
        ("Consulting services", "1500.00"),
        ("Travel expenses", "220.50"),
        ("VAT", "344.10"),
    ]
    assert pairs(read(CONTRACT)["amounts"], "value", "currency") == [("4500.00", "USD"), ("9000.00", "USD")]


def test_a_price_list_names_its_unit_and_skips_what_is_not_quoted() -> None:
    assert pairs(read(PRICES)["amounts"], "label", "value", "currency") == [
        ("Ethanol ($/gal), Iowa, from", "1.35", "USD"),
        ("Ethanol ($/gal), Iowa, to", "1.42", "USD"),
        ("Crude Oil (cents/lb), Indiana/Ohio", "30.92", None),
    ]


@pytest.mark.parametrize("text", ["", "   \f \n", "ΩΩ", "1\n2\n3"])
def test_nothing_is_invented_about_an_empty_page(text: str) -> None:
    found = read(text)
    assert (found["document_type"], found["summary"]) == (None, None)
    assert [found[name] for name in ("parties", "dates", "amounts", "totals")] == [[], [], [], []]


@pytest.mark.parametrize(
    "text",
    [ENGLISH_INVOICE, GERMAN_INVOICE, SPANISH_INVOICE, ARABIC_INVOICE, CONTRACT, STATEMENT, NOTICE, TRIAL, PRICES],
)
def test_every_value_comes_with_a_quote_that_stands_in_the_document(text: str) -> None:
    found = read(text)
    quotes = [*found["evidence"].values()]
    for name in ("parties", "dates", "amounts", "totals"):
        quotes += [item["evidence"] for item in found[name]]
    assert quotes
    for quote in quotes:
        assert quote and quote in text


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("on 2024-02-30", []),
        ("version 1.2.10", []),
        ("call 030/12/34567", []),
        ("03/04/2024", []),
        ("03/04/2024 and 25/04/2024", ["2024-04-03", "2024-04-25"]),
        ("$5 due 03/04/2024", ["2024-03-04"]),
        ("2021 3 31", ["2021-03-31"]),
        ("le 1er août 2023", ["2023-08-01"]),
        ("10-Mar-2024", ["2024-03-10"]),
        ("12 12\nMarch 2016 58", []),
    ],
)
def test_spellings_of_dates(text: str, days: list[str]) -> None:
    assert [found.day.isoformat() for found in find_dates(Document(text))] == days


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234.56", "1234.56"),
        ("1.234,56", "1234.56"),
        ("1'234.50", "1234.50"),
        ("1,234", "1234"),
        ("1,234,567", "1234567"),
        ("12,5", "12.5"),
        ("0.125", "0.125"),
        ("1234", "1234"),
    ],
)
def test_spellings_of_numbers(text: str, value: str) -> None:
    assert str(parse_number(text)) == value


@pytest.mark.parametrize(
    ("text", "value", "currency"),
    [
        ("Price: CHF 1'200.50", "1200.50", "CHF"),
        ("Price: $1.5 million", "1500000", "USD"),
        ("Price: -€45.00", "-45.00", "EUR"),
        ("Price: 3 Mio. EUR", "3000000", "EUR"),
        ("Price: A$ 12.30", "12.30", "AUD"),
        ("Price: 12.30 USD", "12.30", "USD"),
    ],
)
def test_currencies(text: str, value: str, currency: str) -> None:
    found = find_amounts(Document(text))
    assert [(format(one.value, "f"), one.currency) for one in found] == [(value, currency)]


def test_a_schema_of_other_fields_is_filled_by_their_labels() -> None:
    schema = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "invoice_number": {"type": "string"},
            "dueDate": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
            "total_due": {"type": "number"},
            "iban": {"type": ["string", "null"]},
            "kind": {"$ref": "#/$defs/kind"},
        },
        "required": ["invoice_number", "dueDate", "total_due", "iban", "kind"],
        "$defs": {"kind": {"type": "string", "enum": ["invoice", "letter"]}},
    }
    assert read(ENGLISH_INVOICE, schema) == {
        "invoice_number": "INV-2024-0042",
        "dueDate": "2024-04-14",
        "total_due": 2064.6,
        "iban": None,
        "kind": None,
    }


def test_items_keep_only_what_their_schema_allows() -> None:
    party = {"type": "object", "properties": {"name": {"type": "string"}}, "additionalProperties": False}
    schema = {"type": "object", "properties": {"parties": {"type": "array", "items": party}}}
    assert read(SPANISH_INVOICE, schema)["parties"] == [
        {"name": "Aceites del Sur S.L."},
        {"name": "Restaurante La Mar"},
    ]


def test_a_prompt_without_a_document_is_answered_in_words() -> None:
    assert "not a language model" in answer([{"role": "user", "content": "What is love?"}], {})


@given(st.text(max_size=400))
def test_no_text_breaks_it_and_every_quote_is_literal(text: str) -> None:
    found = read(text.replace("<", "").replace(">", ""))
    for name in ("parties", "dates", "amounts", "totals"):
        for item in found[name]:
            assert item["evidence"] in text.replace("<", "").replace(">", "")


def test_a_long_document_is_read_in_a_moment() -> None:
    import time

    text = "\f".join([ENGLISH_INVOICE, CONTRACT, NOTICE, "word " * 400] * 50)
    began = time.perf_counter()
    read(text)
    assert time.perf_counter() - began < 10
