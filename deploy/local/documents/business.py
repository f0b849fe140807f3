"""Papers of trade: invoices, an order, a receipt."""

from __future__ import annotations

from deploy.local.documents.paper import FONT, Made, Paper


def invoice() -> Made:
    """An English invoice with a ruled list and a total in pounds."""
    paper = Paper()
    paper.heading("INVOICE")
    paper.lines("Harbour Lane Instruments Ltd", "7 Harbour Lane, Bristol BS1 5AB")
    paper.lines("Bill to:", "Millbrook Observatory Trust", "Hill Road 2, Keswick CA12 4QD")
    paper.lines("Invoice number: HL-2026-0117", "Invoice date: 12 February 2026", "Due date: 14 March 2026")
    paper.grid(
        [
            ["Description", "Qty", "Unit price", "Amount"],
            ["Barometer, aneroid", "4", "£182.00", "£728.00"],
            ["Calibration visit", "1", "£240.00", "£240.00"],
            ["Carriage", "1", "£36.50", "£36.50"],
        ],
        [220, 50, 100, 110],
    )
    paper.lines("Subtotal: £1,004.50", "VAT 20%: £200.90", "Total due: £1,205.40")
    paper.lines("Please pay within 30 days by bank transfer.")
    return paper.made(
        document_type="invoice",
        parties=["Harbour Lane Instruments Ltd", "Millbrook Observatory Trust"],
        dates=["2026-02-12", "2026-03-14"],
        totals=[("1205.40", "GBP")],
    )


def german_invoice() -> Made:
    """A German invoice: umlauts, decimal commas, euros."""
    paper = Paper()
    paper.heading("Rechnung")
    paper.lines("Böttcherei Hölzle & Söhne GmbH", "Küferstraße 12, 73728 Esslingen")
    paper.lines("Rechnungsempfänger: Weingut Schönblick KG", "Rechnungsnummer: 2026-0384")
    paper.lines("Rechnungsdatum: 03.02.2026", "Fällig bis: 05.03.2026")
    paper.grid(
        [
            ["Leistung", "Menge", "Einzelpreis", "Betrag"],
            ["Barriquefass, Eiche", "6", "645,00 €", "3.870,00 €"],
            ["Instandsetzung Küferwerkzeug", "1", "187,50 €", "187,50 €"],
        ],
        [220, 50, 100, 110],
    )
    paper.lines("Zwischensumme: 4.057,50 €", "MwSt. 19 %: 770,93 €", "Gesamtbetrag: 4.828,43 €")
    return paper.made(
        document_type="invoice",
        parties=["Böttcherei Hölzle & Söhne GmbH", "Weingut Schönblick KG"],
        dates=["2026-02-03", "2026-03-05"],
        totals=[("4828.43", "EUR")],
    )


def purchase_order() -> Made:
    """An order in dollars that names a delivery date."""
    paper = Paper("Letter")
    paper.heading("PURCHASE ORDER")
    paper.lines("Purchase order number: PO-88214", "Order date: January 19, 2026", "Delivery date: February 27, 2026")
    paper.lines("Buyer: Cedar Falls Water District", "Supplier: Granite Peak Valve Company")
    rows = [["Item", "Quantity", "Unit price", "Amount"]]
    goods = (("Gate valve 6 in", 12, 418.0), ("Check valve 4 in", 8, 265.5), ("Flange kit", 20, 38.25))
    rows += [[name, str(count), f"${price:,.2f}", f"${count * price:,.2f}"] for name, count, price in goods]
    paper.grid(rows, [200, 80, 100, 110])
    total = sum(count * price for _, count, price in goods)
    paper.lines(f"Order total: ${total:,.2f}")
    return paper.made(
        document_type="purchase order",
        parties=["Cedar Falls Water District", "Granite Peak Valve Company"],
        dates=["2026-01-19", "2026-02-27"],
        totals=[(f"{total:.2f}", "USD")],
    )


def receipt() -> Made:
    """A narrow slip from a till."""
    paper = Paper((226, 420))
    paper.set_margins(16, 16, 16)
    paper.set_xy(16, 16)
    paper.heading("RECEIPT", 12)
    paper.lines("Corner Bakery Lindqvist", "Date: 2026-01-30  08:14")
    paper.set_font(FONT, "", 8)
    for name, price in (("Rye bread", "€4.20"), ("Cardamom buns x4", "€9.60"), ("Coffee", "€3.10")):
        paper.cell(130, 12, name)
        paper.cell(60, 12, price, align="R", new_x="LMARGIN", new_y="NEXT")
    paper.ln(8)
    paper.lines("Total: €16.90", "Paid by card", "Thank you!")
    return paper.made(document_type="receipt", dates=["2026-01-30"], totals=[("16.90", "EUR")])
