"""The style of the health page: one style sheet for light and dark schemes, wide and narrow screens."""

POLICY = """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">"""
"""Text that is ever escaped incorrectly can still not load or run anything."""

STYLE = """
:root { color-scheme: light dark; --bg: #ffffff; --ink: #1b2733; --muted: #566475; --line: #d9e0e7;
  --panel: #f5f7fa; --none: #e8ecf1; --good: #58b189; --bad: #c2323a; --wait: #dc9a1f; --held: #8055cf;
  --on: #ffffff; --on-wait: #1b2733; --alarm: #a8242c; --fine: #1f6f49; --series-1: #2767b8; --series-2: #c4561a;
  --series-3: #7a8796 }
@media (prefers-color-scheme: dark) { :root { --bg: #10151b; --ink: #e4eaf1; --muted: #9aa8b8; --line: #2b3541;
  --panel: #18202a; --none: #222c37; --good: #2f7d59; --bad: #e2545b; --wait: #dba53c; --held: #a384ea;
  --on: #10151b; --on-wait: #10151b; --alarm: #ff8a8f; --fine: #6fcf9f; --series-1: #6ea8f0; --series-2: #f0935a;
  --series-3: #8492a3 } }
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 72rem; padding: 1.2rem 1rem 3rem;
  color: var(--ink); background: var(--bg); overflow-wrap: anywhere }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem }
h3 { font-size: .95rem; margin: 0 }
h4 { font-size: .95rem; margin: 0 0 .3rem }
p { margin: .3rem 0 }
.quiet { color: var(--muted) }
.alarm { color: var(--alarm); font-weight: 600 }
.fine { color: var(--fine); font-weight: 600 }
small, .small { font-size: .84rem }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(10.2rem, 1fr)); gap: .6rem;
  margin: 1rem 0 0; padding: 0 }
.tile { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: .55rem .75rem }
.tile b { display: block; font-size: 1.3rem; line-height: 1.3; font-variant-numeric: tabular-nums }
.tile span { color: var(--muted) }
.tile .small { display: block; line-height: 1.35 }
.tile.warn { border-color: var(--bad) }
.tile.warn b { color: var(--alarm) }
.question { border: 1px solid var(--line); border-left: 5px solid var(--bad); border-radius: 6px;
  padding: .6rem .8rem; background: var(--panel) }
.question.held { border-left-color: var(--held) }
.question.wait { border-left-color: var(--wait) }
code { font: .86em/1.5 ui-monospace, monospace; background: var(--none); padding: .1rem .3rem; border-radius: 4px }
code.command span { white-space: nowrap }
.questions { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 31rem), 1fr)); gap: .7rem 1rem }
code.command { display: block; padding: .35rem .55rem; margin: .3rem 0; user-select: all; white-space: pre-wrap }
details > summary { cursor: pointer }
.months { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 31rem), 1fr)); gap: 1.1rem 2rem;
  margin: .8rem 0 }
.days { display: grid; grid-template-columns: 6.3rem repeat(var(--columns), minmax(0, 1fr)); gap: 2px;
  align-items: stretch }
.days > b { font-weight: 400; font-size: .78rem; line-height: 1.35rem; white-space: nowrap; color: var(--muted);
  overflow: hidden }
.days > em { font-style: normal; font-size: .7rem; line-height: 1.1rem; color: var(--muted); white-space: nowrap;
  overflow: visible; width: 0 }
.days > i, .days > button { display: block; min-width: 0; height: 1.35rem; border-radius: 2px;
  background: var(--none) }
.days > button { border: 0; padding: 0; margin: 0; font: 700 .8rem/1.35rem system-ui, sans-serif; cursor: pointer;
  color: var(--on); overflow: hidden; text-align: center }
.days > button:focus-visible, .days > button:hover { outline: 2px solid var(--ink); outline-offset: 1px }
.days > .blank { background: none }
.days .good, .key.good { background: var(--good) }
.days .bad, .key.bad { background: var(--bad) }
.days .held, .key.held { background: var(--held) }
.days .wait, .key.wait { background: var(--wait); color: var(--on-wait) }
.days .part, .key.part { background: repeating-linear-gradient(135deg, var(--good) 0 3px, var(--none) 3px 6px);
  color: var(--ink) }
.key { display: inline-block; width: .85rem; height: .85rem; border-radius: 2px; vertical-align: -.08rem;
  margin: 0 .3rem 0 .9rem; background: var(--none) }
.key:first-child { margin-left: 0 }
.key.s1 { background: var(--series-1) }
.key.s2 { background: var(--series-2) }
.key.s3 { background: var(--series-3) }
[popover] { max-width: min(44rem, calc(100vw - 1.5rem)); max-height: 80vh; overflow: auto;
  border: 1px solid var(--line); border-radius: 8px; padding: .9rem 1rem; background: var(--bg); color: var(--ink);
  box-shadow: 0 6px 30px rgb(0 0 0 / .35) }
[popover]::backdrop { background: rgb(0 0 0 / .35) }
[popover] li { margin: .35rem 0 }
[popover] ul { margin: .3rem 0; padding-left: 1.1rem }
@supports not selector(:popover-open) { [popover] { display: block; margin: .5rem 0; box-shadow: none;
  max-width: none } }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 31rem), 1fr)); gap: 1.4rem 2rem }
figure { margin: 0 }
figure svg { display: block; width: 100%; height: auto; margin-top: .2rem }
figure text { font-family: inherit !important }
table { border-collapse: collapse; width: 100%; font-size: .9rem }
td, th { padding: .3rem .5rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top }
th { font-weight: 600; color: var(--muted) }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
@media (max-width: 40rem) { body { padding: .8rem .75rem 2rem }
.days { grid-template-columns: 5.4rem repeat(var(--columns), minmax(0, 1fr)); gap: 1px }
.days > b { font-size: .7rem }
.tiles { grid-template-columns: repeat(2, minmax(0, 1fr)) }
table.cards thead { display: none }
table.cards, table.cards tbody, table.cards tr, table.cards td { display: block; width: auto }
table.cards tr { border-bottom: 1px solid var(--line); padding: .4rem 0 }
table.cards td { border: 0; padding: .08rem 0; text-align: left; white-space: normal }
table.cards td[data-name]::before { content: attr(data-name) ": "; color: var(--muted) } }
"""
