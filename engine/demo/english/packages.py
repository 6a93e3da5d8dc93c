"""The Debian packages that the text is read from, where their English files lie and what they are licensed under."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Package:
    """A documentation package.

    files: patterns of its English documents beneath the folder it is unpacked in. licence: of the documents,
    as its debian/copyright names it.
    """

    name: str
    licence: str
    files: tuple[str, ...]


PACKAGES = (
    Package("debian-handbook", "GPL-2+ or CC-BY-SA-3.0", ("usr/share/doc/debian-handbook/html/en-US/*.html",)),
    Package("debian-reference-en", "GPL-2+", ("usr/share/debian-reference/*.en.html",)),
    Package("debian-policy", "GPL-2+", ("usr/share/doc/debian-policy/*.html/*.html",)),
    Package("developers-reference", "GPL-2+", ("usr/share/developers-reference/*.html",)),
    Package("debian-faq", "GPL-2+", ("usr/share/doc/debian/FAQ/*.en.html",)),
    Package("maint-guide", "GPL-2+", ("usr/share/doc/maint-guide/html/*.en.html",)),
    Package("installation-guide-amd64", "GPL-2", ("usr/share/doc/installation-guide-amd64/en/*.html",)),
    Package("linux-doc-6.1", "GPL-2", ("usr/share/doc/linux-doc-6.1/html/**/*.html",)),
    Package("python3.11-doc", "PSF-2", ("usr/share/doc/python3.11/html/[!_]*/*.html",)),
    Package("python-django-doc", "BSD-3-Clause", ("usr/share/doc/python-django-doc/html/[!_]*/**/*.html",)),
    Package("postgresql-doc-15", "PostgreSQL", ("usr/share/doc/postgresql-doc-15/html/*.html",)),
    Package("git-doc", "GPL-2", ("usr/share/doc/git-doc/**/*.html",)),
    Package("apache2-doc", "Apache-2.0", ("usr/share/doc/apache2-doc/manual/en/**/*.html",)),
    Package("gnome-user-docs", "CC-BY-SA-3.0", ("usr/share/help/C/**/*.page",)),
    Package("libreoffice-help-en-us", "MPL-2.0", ("usr/share/libreoffice/help/en-US/text/**/*.html",)),
    Package("gnucash-docs", "GFDL-1.1+ without invariant sections", ("usr/share/doc/gnucash-docs/*-en/*.html",)),
    Package("perl-doc", "Artistic or GPL-1+", ("usr/share/perl/*/pod/*.pod",)),
    Package("sqlite3-doc", "public domain", ("usr/share/doc/sqlite3/**/*.html",)),
    Package("racket-doc", "MIT or Apache-2.0", ("usr/share/doc/racket/**/*.html",)),
    Package("erlang-doc", "Apache-2.0", ("usr/share/doc/erlang-doc/**/*.html",)),
    Package("rust-doc", "MIT or Apache-2.0", tuple(f"usr/share/doc/rust-doc/html/{book}/**/*.html" for book in (
        "book", "reference", "nomicon", "edition-guide", "cargo", "rust-by-example", "rustc", "rustdoc",
        "embedded-book",
    ))),
    Package("exim4-doc-html", "GPL-2+", ("usr/share/doc/exim4-doc-html/spec_html/*.html",)),
    Package("zsh-doc", "MIT-like (zsh)", ("usr/share/doc/zsh-common/html/*.html",)),
)  # fmt: skip
