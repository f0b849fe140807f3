"""Long and wide tables."""

from __future__ import annotations

from decimal import Decimal

import pikepdf

from deploy.local.documents.paper import Made, Paper

_SHOPS = ("Grocer", "Rail ticket", "Pharmacy", "Water bill", "Bookshop", "Garage", "Library fee", "Post office")


def bank_statement() -> Made:
    """A statement whose ruled table goes over four pages, header repeated; the sums add up."""
    paper = Paper()
    paper.heading("Account statement")
    paper.lines("Northfell Savings Bank", "Account holder: Ingrid Halvorsen")
    paper.lines("Statement period: 2026-01-01 to 2026-01-31", "Currency: EUR")
    balance = Decimal("2840.15")
    rows = [["Date", "Description", "Debit", "Credit", "Balance"]]
    for number in range(130):
        day = f"2026-01-{number * 31 // 130 + 1:02d}"
        if number % 26 == 5:
            change = Decimal("1210.40")
            balance += change
            rows.append([day, "Salary", "", f"{change:,.2f}", f"{balance:,.2f}"])
        else:
            change = Decimal(number % 17 * 311 + 205) / 100
            balance -= change
            rows.append([day, _SHOPS[number % len(_SHOPS)], f"{change:,.2f}", "", f"{balance:,.2f}"])
    paper.lines("Opening balance: 2,840.15 EUR")
    paper.grid(rows, [90, 150, 75, 75, 90])
    paper.lines(f"Closing balance: {balance:,.2f} EUR")
    return paper.made(
        document_type="account statement",
        totals=[("2840.15", "EUR"), (f"{balance:.2f}", "EUR")],
        table_rows=len(rows) - 1,
        last_row=rows[-1],
    )


def price_list_on_its_side() -> Made:
    """A wide table on a page that the file shows turned by 90 degrees."""
    paper = Paper(landscape=True)
    paper.heading("Price list 2026")
    paper.lines("Valid from 1 April 2026", "Supplier: Fjordline Rope Works AS", "All prices in NOK")
    rows = [["Article", "Diameter mm", "Length m", "Weight kg", "Price per coil", "Price per metre"]]
    for number in range(1, 19):
        diameter, length = 4 + number, 220 - number * 5
        price = Decimal(diameter * diameter * 9) + Decimal("12.50")
        rows.append(
            [f"Rope R{number:02d}", str(diameter), str(length), f"{diameter * length / 400:.1f}", f"{price:.2f}",
             f"{price / length:.2f}"]
        )  # fmt: skip
    paper.grid(rows, [120, 110, 110, 110, 140, 140])
    made = paper.made(
        parties=["Fjordline Rope Works AS"], dates=["2026-04-01"], table_rows=len(rows) - 1, last_row=rows[-1]
    )
    return Made(_turned(made.data, 90), made.pages, made.expected)


def _turned(data: bytes, degrees: int) -> bytes:
    """The same pages, shown turned by so many degrees."""
    from io import BytesIO

    with pikepdf.open(BytesIO(data)) as pdf:
        for page in pdf.pages:
            page.rotate(degrees, relative=False)
        turned = BytesIO()
        pdf.save(turned, static_id=True)
    return turned.getvalue()
