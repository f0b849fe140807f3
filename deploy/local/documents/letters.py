"""Running text: a contract, letters in several alphabets, a long report."""

from __future__ import annotations

from io import BytesIO

import pikepdf

from deploy.local.documents.paper import Made, Paper

_CLAUSES = (
    (
        "Services",
        "The Provider maintains the harbour gauges of the Client and reports their readings every working day.",
    ),
    ("Fees", "The Client pays EUR 3,450.00 per month, within 30 days of the invoice."),
    ("Deposit", "On signature the Client pays a deposit of EUR 6,900.00, returned at the end of the agreement."),
    ("Term", "This agreement starts on 1 March 2026 and ends on 28 February 2028."),
    ("Liability", "The Provider is liable for damage that it causes by intent or gross negligence."),
    ("Confidentiality", "Both sides keep what they learn about each other's business to themselves."),
    ("Law", "The law of the Netherlands applies; the courts of Rotterdam decide."),
)
_PLACES = ("Aldermoor", "Brackwater", "Cinder Hill", "Dunmere", "Eastfold", "Fallow End", "Greywick", "Highmarsh")


def contract() -> Made:
    """A service agreement over three pages."""
    paper = Paper()
    paper.heading("SERVICE AGREEMENT")
    paper.lines(
        'This Service Agreement ("Agreement") is made on 16 February 2026 between Delta Gauge Services B.V. '
        '("Provider") and Zuiderkade Port Authority ("Client").'
    )
    for number, (title, text) in enumerate(_CLAUSES, start=1):
        if number in (4, 6):
            paper.add_page()
        paper.heading(f"{number}. {title}", 12)
        paper.lines(text, gap=20)
    paper.lines("Signed in Rotterdam on 16 February 2026.")
    return paper.made(
        document_type="contract",
        parties=["Delta Gauge Services B.V.", "Zuiderkade Port Authority"],
        dates=["2026-02-16", "2026-03-01", "2028-02-28"],
        amounts=[("3450.00", "EUR"), ("6900.00", "EUR")],
    )


def two_languages() -> Made:
    """A letter in German and, below, in English."""
    paper = Paper()
    paper.lines("Stadtwerke Grünau GmbH", "Rosenweg 3, 04109 Leipzig", gap=20)
    paper.lines("Leipzig, 9. Januar 2026")
    paper.heading("Kündigung des Wasserliefervertrags / Termination of the water supply contract", 12)
    paper.lines(
        "Sehr geehrte Damen und Herren,",
        "hiermit kündigen wir den Vertrag zum 31.03.2026. Die Schlusszahlung beträgt 1.318,20 EUR.",
        "Mit freundlichen Grüßen, Jürgen Böhm",
        gap=24,
    )
    paper.lines(
        "Dear Sir or Madam,",
        "we hereby terminate the contract as of 31 March 2026. The final payment is EUR 1,318.20.",
        "Yours faithfully, Jürgen Böhm",
    )
    return paper.made(parties=["Stadtwerke Grünau GmbH"], dates=["2026-03-31"], amounts=[("1318.20", "EUR")])


def ukrainian_and_greek() -> Made:
    """Two alphabets beyond the Latin one."""
    paper = Paper()
    paper.heading("Лист / Επιστολή", 14)
    paper.lines("ТОВ «Світанок», вул. Садова 5, Львів", "Дата: 05.02.2026")
    paper.lines("Шановні колеги, надсилаємо кошторис на суму 48 250,00 грн (UAH 48250.00).", gap=20)
    paper.lines("Αγαπητοί συνεργάτες, σας στέλνουμε την προσφορά μας ύψους EUR 1,150.00.", "Ημερομηνία: 05/02/2026")
    return paper.made(amounts=[("1150.00", "EUR")], text=["Шановні колеги", "Αγαπητοί συνεργάτες"])


def forty_pages() -> Made:
    """A report of forty pages, one place to a page, a sum on each and the total on the last."""
    paper = Paper()
    paper.heading("Annual report 2025")
    paper.lines("Upland Rivers Conservancy", "Report date: 20 January 2026")
    spent = 0
    for number in range(1, 40):
        paper.add_page()
        place, cost = _PLACES[number % len(_PLACES)], 1_000 + number * 37
        spent += cost
        paper.heading(f"Station {number}: {place}", 13)
        paper.lines(
            f"The gauge at {place} was read on {200 + number} days.",
            f"The highest level was {number % 9 + 1}.{number % 10} m.",
            f"Maintenance cost: EUR {cost:,}.00",
        )
        for week in range(1, 13):
            paper.lines(
                f"Week {week}: mean level {week % 5 + 1}.{(number + week) % 10} m, rain {number + week} mm.", gap=0
            )
    paper.lines("", f"Total maintenance: EUR {spent:,}.00")
    return paper.made(document_type="report", dates=["2026-01-20"], totals=[(f"{spent}.00", "EUR")])


def locked() -> Made:
    """A letter that opens only with a password."""
    paper = Paper()
    paper.lines("This text is for the holder of the password only.")
    return Made(_encrypted(bytes(paper.output()), user="open sesame"), 1, end="failed", reason="password_required")


def with_attachment() -> Made:
    """A letter that may be read but not copied, and carries a file that is none of our business."""
    paper = Paper()
    paper.heading("Minutes of the meeting", 14)
    paper.lines("Date: 11 February 2026", "Present: the board of Quarry Lane Allotments.", "Budget: GBP 640.00")
    paper.embed_file(bytes=b"name,plot\nA,1\n", basename="plots.csv")
    made = paper.made(dates=["2026-02-11"], amounts=[("640.00", "GBP")], attachments=["plots.csv"])
    return Made(_encrypted(made.data, user=""), made.pages, made.expected)


def _encrypted(data: bytes, *, user: str) -> bytes:
    """The file under a password. RC4 has no random part, so the bytes stay the same; AES is tried in the tests."""
    encryption = pikepdf.Encryption(owner="owner", user=user, R=3, aes=False, metadata=False)
    with pikepdf.open(BytesIO(data)) as pdf:
        locked_file = BytesIO()
        pdf.save(locked_file, encryption=encryption, static_id=True)
    return locked_file.getvalue()
