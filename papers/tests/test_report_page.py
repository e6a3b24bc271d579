import re
from html.parser import HTMLParser

from recollect.evaluation.reports import plots
from recollect_papers.demo.report_page import ReportPage


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.targets = []

    def handle_starttag(self, tag, attrs):
        self.targets += [value for name, value in attrs if name in {"src", "href"}]


def test_a_page_loads_nothing_from_elsewhere(tmp_path):
    page = ReportPage("Report")
    figure, _ = plots.new_figure()
    page.figure(figure, "an empty figure")
    page.save(tmp_path / "report.html")
    links = Links()
    links.feed((tmp_path / "report.html").read_text())
    assert links.targets
    assert all(target.startswith("data:image/png;base64,") for target in links.targets)
    assert not re.search(r"url\(|@import|https?://", (tmp_path / "report.html").read_text())


def test_texts_are_escaped():
    page = ReportPage("a <b> title")
    page.heading("<script>alert(1)</script>")
    page.table("x & y", ["<i>", "n"], [["<u>", "1"]])
    html = page.html()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "&lt;u&gt;" in html
