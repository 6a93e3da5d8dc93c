"""Documentation as paragraphs."""

from pathlib import Path

from engine.demo.english.readers import markup_paragraphs, paragraphs, pod_paragraphs


def test_html_is_prose_without_what_is_preformatted() -> None:
    page = """<html><head><title>no</title></head><body><nav><p>no</p></nav>
        <h1>A title</h1><p>One &amp; <b>two</b>
        three.</p><pre>no <p>no</p></pre><ul><li>An item<br/>and more</li></ul>tail</body></html>"""
    assert markup_paragraphs(page) == ["A title", "One & two three.", "An item", "and more", "tail"]


def test_an_unclosed_element_within_silence_ends_with_it() -> None:
    assert markup_paragraphs("<pre><code>no</pre><p>yes</p></svg>") == ["yes"]


def test_mallard() -> None:
    page = "<page><info><desc>no block</desc></info><p>Press <key>F1</key>.</p><screen>no</screen></page>"
    assert markup_paragraphs(page) == ["no block", "Press F1."]


def test_pod_has_no_commands_and_no_code() -> None:
    pod = "=head1 NAME\n\nUse B<strict> and C<< $a->b >>,\nplease, I<in B<all>> files.\n\n    my $code;\n\n=cut\n"
    assert pod_paragraphs(pod) == ["Use strict and $a->b, please, in all files."]


def test_the_ending_chooses_the_reader(tmp_path: Path) -> None:
    (tmp_path / "a.pod").write_text("=head1 X\n\nText.\n")
    (tmp_path / "a.html").write_bytes(b"<p>caf\xe9</p>")
    assert paragraphs(tmp_path / "a.pod") == ["Text."]
    assert paragraphs(tmp_path / "a.html") == ["caf\N{REPLACEMENT CHARACTER}"]
