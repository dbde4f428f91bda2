"""Determine a file's language from its name.

One table serves for outlines and for telling code from other files.
"""

from functools import cache

# Grammar names of tree-sitter-language-pack, each with the suffixes, and then the complete names, of its
# files.
CODE = """
actionscript: .as
ada: .adb .ads
agda: .agda
apex: .apex .trigger
arduino: .ino
asm: .asm .s
astro: .astro
bash: .bash .bats .command .ksh .sh .zsh
bicep: .bicep
bitbake: .bb .bbappend .bbclass
bsl: .bsl
c: .c .h
cairo: .cairo
capnp: .capnp
clarity: .clar
clojure: .clj .cljc .cljs .edn
cmake: .cmake CMakeLists.txt
cobol: .cbl .cob .cpy
commonlisp: .cl .lisp .lsp
cpp: .c++ .cc .cpp .cppm .cxx .h++ .hh .hpp .hxx .inl .ipp .ixx .tcc .tpp
csharp: .cs .csx
css: .css
cuda: .cu .cuh
d: .d .di
dart: .dart
dockerfile: .dockerfile Containerfile Dockerfile
elisp: .el
elixir: .ex .exs
elm: .elm
embeddedtemplate: .ejs .erb
erlang: .erl .hrl
fennel: .fnl
firrtl: .fir
fish: .fish
fortran: .f .f03 .f08 .f90 .f95 .for .ftn
fsharp: .fs .fsx
fsharp_signature: .fsi
gdscript: .gd
gleam: .gleam
glsl: .comp .frag .geom .glsl .tesc .tese .vert
gn: .gn .gni
go: .go
graphql: .gql .graphql .graphqls
groovy: .gradle .groovy Jenkinsfile
hack: .hack .hck .hhi
hare: .ha
haskell: .hs .lhs
haxe: .hx
hcl: .hcl .nomad
heex: .heex .leex
hlsl: .fx .hlsl
html: .htm .html .xhtml
ispc: .ispc
janet: .janet
java: .java
javascript: .cjs .js .jsx .mjs
jsonnet: .jsonnet .libsonnet
julia: .jl
kotlin: .kt .kts
linkerscript: .ld .lds
llvm: .ll
lua: .lua
luau: .luau
magik: .magik
make: .mak .mk GNUmakefile Makefile makefile
matlab: .m
meson: meson.build meson.options meson_options.txt
nim: .nim .nims
ninja: .ninja
nix: .nix
nqc: .nqc
objc: .mm
ocaml: .ml
ocaml_interface: .mli
odin: .odin
pascal: .dpr .lpr .pas .pp
perl: .pl .pm .t
php: .inc .php .phtml
pony: .pony
powershell: .ps1 .psd1 .psm1
prisma: .prisma
proto: .proto
puppet: .epp
purescript: .purs
python: .py .pyi .pyw .pyx .pxd .bzl SConscript SConstruct
qmljs: .qml
query: .scm
r: .r
racket: .rkt
re2c: .re
rego: .rego
ruby: .gemspec .rake .rb .rbi .ru Gemfile Rakefile Vagrantfile
rust: .rs
scala: .sbt .sc .scala
scheme: .sld .sls .ss
scss: .sass .scss
smali: .smali
smithy: .smithy
solidity: .sol
sparql: .rq .sparql
sql: .sql
squirrel: .nut
starlark: .star BUILD BUILD.bazel WORKSPACE
svelte: .svelte
swift: .swift
tablegen: .td
tcl: .tcl .tk
terraform: .tf .tfvars
thrift: .thrift
tsx: .tsx
twig: .twig
typescript: .cts .mts .ts
uxntal: .tal
v: .vsh .vv
verilog: .sv .svh .v .vh
vhdl: .vhd .vhdl
vim: .vim
vue: .vue
wast: .wast
wat: .wat
wgsl: .wgsl
yuck: .yuck
zig: .zig
: .coffee .cr .f77 .hbs .j2 .jinja .jinja2 .jsp .less .liquid .mako .ml4 .mustache .pug .slim .styl .tmpl .tpl .vb .yy .y .l
"""

TEXT = """
bibtex: .bib
latex: .cls .latex .sty .tex
markdown: .markdown .md .mdown .mdx
org: .org
po: .po .pot
rst: .rest .rst
typst: .typ
: .adoc .asciidoc .1 .3 .5 .7 .8 .pod .rdoc .textile .txt .wiki
"""


def word_set(words: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(words.split())


@cache
def _table(text: str) -> dict[str, str]:
    """Return grammar names by suffix (lower case, with its dot) or complete name.

    The first line that lists it counts.
    """
    found: dict[str, str] = {}
    for line in text.strip().split("\n"):
        language, _, files = line.partition(":")
        for file in files.split():
            found.setdefault(file, language)
    return found


def suffix(name: str) -> str:
    """Return the last suffix of a file name in lower case, with its dot; empty if the name has no suffix."""
    stem, dot, last = name.rpartition(".")
    return f".{last.lower()}" if dot and stem else ""


def _language(table: dict[str, str], name: str) -> str | None:
    """Return the grammar for a file name.

    Returns:
        An empty string if the language has no grammar; None if the table lacks the name.
    """
    found = table.get(suffix(name))
    return table.get(name) if found is None and not name.startswith(".") else found


def is_code(name: str) -> bool:
    """Return whether a file name (without folders) is that of code that is run, built or shown to users."""
    return _language(_table(CODE), name) is not None


def is_prose(name: str) -> bool:
    """Return whether a file name (without folders) is that of text for people."""
    return _language(_table(TEXT), name) is not None


def grammar(path: str) -> str | None:
    """Return the name of the tree-sitter grammar for a path, or None if no grammar is known."""
    name = path.rpartition("/")[2]
    return _language(_table(CODE), name) or _language(_table(TEXT), name) or None
