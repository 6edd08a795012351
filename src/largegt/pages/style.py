"""How the page looks and what it does on a hover: one style sheet and one small script, both inside the page.

The script shows what the charts carry in their attributes, always as text. The page's policy lets no other script run
and nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib

from .colors import COLORS, DARK_COLORS, INK, MUTED

_STYLE = """
:root{--bg:#fff;--panel:#f6f7f9;--ink:INK;--soft:MUTED;--rule:#d9dee5;--grid:#e6e9ee;--link:#0063a8;
LIGHT
--heat:#0b5394;--on:#fff;color-scheme:light}
@media (prefers-color-scheme:dark){@media screen{:root{--bg:#12161c;--panel:#1b222b;--ink:#e6eaf0;--soft:#a5b0be;
--rule:#38424f;--grid:#2a323d;--link:#7cbcff;DARK
--heat:#8cc4ff;--on:#0c1118;color-scheme:dark}}}
*{box-sizing:border-box}
html{scroll-padding-top:1rem;-webkit-text-size-adjust:100%}
body{font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;color:var(--ink);
background:var(--bg);max-width:68rem;margin:0 auto;padding:1.5rem 1.25rem 4rem;font-variant-numeric:tabular-nums}
h1{font-size:1.7rem;line-height:1.25;margin:.5rem 0 .3rem;overflow-wrap:anywhere}
h2{font-size:1.3rem;margin:3rem 0 .3rem;padding-top:.8rem;border-top:1px solid var(--rule)}
h3{font-size:1.05rem;margin:1.6rem 0 .3rem;overflow-wrap:anywhere}
a{color:var(--link)} .lead{color:var(--soft);margin:.2rem 0 1rem;max-width:48rem}
.note{color:var(--soft);font-size:.9rem;overflow-wrap:anywhere}
.say{background:var(--panel);border-left:4px solid var(--c1);padding:.6rem .9rem;margin:.8rem 0;overflow-wrap:anywhere}
nav ol{margin:.8rem 0;padding-left:1.4rem;columns:2 16rem}
.facts{display:flex;flex-wrap:wrap;gap:.6rem;list-style:none;padding:0;margin:1rem 0}
.facts li{background:var(--panel);border-radius:.5rem;padding:.5rem .9rem;flex:1 1 9rem}
.facts b{display:block;font-size:1.25rem;overflow-wrap:anywhere} .facts span{color:var(--soft);font-size:.85rem}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(25rem,100%),1fr));gap:1.6rem 2rem;
align-items:start;margin:1rem 0}
figure{margin:0;min-width:0}
figcaption{font-weight:600;font-size:.95rem;margin-bottom:.3rem;overflow-wrap:anywhere}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.1rem 1rem;padding:0;margin:.2rem 0 .4rem;font-size:.85rem}
.legend li{display:flex;align-items:center;gap:.4rem;overflow-wrap:anywhere;min-width:0}
.key{width:34px;height:14px;flex:none} .key.dot{width:14px}
details{margin:.4rem 0} summary{cursor:pointer;color:var(--soft);font-size:.9rem;padding:.25rem 0}
.scroll{overflow-x:auto;max-width:100%} .scroll+.scroll{margin-top:1rem}
.scroll:focus-visible,summary:focus-visible{outline:2px solid var(--link)}
table{border-collapse:collapse;font-size:.9rem;min-width:min(100%,20rem)}
caption{text-align:left;color:var(--soft);font-size:.85rem;padding:.2rem 0 .4rem}
th,td{text-align:right;padding:.3rem .7rem;border-bottom:1px solid var(--rule);white-space:nowrap}
th{font-weight:500} thead th{font-weight:600;border-bottom:2px solid var(--soft);vertical-align:bottom}
th.l,td.l{text-align:left} .wrap{white-space:normal;min-width:16rem;overflow-wrap:anywhere}
code,pre{font:.85em/1.45 ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace}
pre{background:var(--panel);padding:.9rem;overflow-x:auto;border-radius:.4rem}
.rank{display:inline-block;min-width:1.35em;padding:0 .3em;margin-right:.4em;border-radius:.7em;text-align:center;
font-size:.8em;font-weight:700;border:1px solid currentColor}
.r1{background:var(--ink);color:var(--bg)} .r2{color:var(--ink)} .r3{color:var(--soft);border-style:dashed}
tr:has(.r1) .l{font-weight:700}
svg.chart{display:block;width:100%;height:auto;overflow:visible;touch-action:pan-y}
svg text{font-size:12.5px;fill:var(--soft)} svg .mid{text-anchor:middle} svg .end{text-anchor:end}
svg .axis{fill:var(--ink);font-size:13px} svg .name{fill:var(--ink);font-size:13.5px} svg .value{fill:var(--ink)}
svg .in{font-size:10.5px;text-anchor:middle;fill:var(--ink);pointer-events:none} svg .in.on{fill:var(--on)}
.grid{stroke:var(--grid);fill:none} .base,.frame{stroke:var(--soft);fill:none} .diagonal{stroke:var(--soft);
stroke-dasharray:4 4;fill:none} .cross{stroke:var(--soft);stroke-dasharray:2 2;pointer-events:none}
.line{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round} .mark{fill:var(--c);stroke:var(--c)}
.ring,.bar-of{fill:none;stroke:var(--c);stroke-width:1.6}
.full>path{fill:var(--c);stroke:var(--c);stroke-width:1.6} .open>path{fill:var(--bg);stroke:var(--c);stroke-width:1.8}
.solid>rect{fill:var(--c)} .solid>.error{stroke:var(--ink);stroke-width:1.4;fill:none}
.heat{fill:var(--heat)}
.points{fill:var(--c);stroke:var(--c);fill-opacity:.75;stroke-opacity:.75} .p0,.p2{stroke-width:6.5}
.p0{stroke-linecap:round} .p2{stroke-width:5.5;stroke-linecap:square}
.narrow{max-width:40rem} .edge{fill:none;stroke:var(--soft);stroke-opacity:.45} .edge.loose{stroke-dasharray:3 4}
.self{fill:var(--ink)} svg .strong{font-weight:700} svg.around .name{font-size:12.5px;pointer-events:none;
paint-order:stroke;stroke:var(--bg);stroke-width:3px}
CLASSES
.h0{fill-opacity:.03}.h1{fill-opacity:.08}.h2{fill-opacity:.18}.h3{fill-opacity:.28}.h4{fill-opacity:.38}
.h5{fill-opacity:.48}.h6{fill-opacity:.66}.h7{fill-opacity:.77}.h8{fill-opacity:.88}
#tip{position:fixed;z-index:9;pointer-events:none;max-width:min(22rem,92vw);background:var(--ink);color:var(--bg);
font-size:.82rem;line-height:1.4;padding:.35rem .6rem;border-radius:.35rem;white-space:pre-line;overflow-wrap:anywhere}
#tip[hidden]{display:none}
tbody th:first-child,thead th:first-child{position:sticky;left:0;background:var(--bg)}
@media (max-width:34rem){body{padding:1rem .9rem 3rem} h1{font-size:1.4rem} .figures{gap:1.4rem}
tbody th:first-child{white-space:normal;overflow-wrap:anywhere;min-width:8.5rem;max-width:11rem}
th:first-child{padding-left:.2rem}
svg.around .name{font-size:17px} svg .few{display:none}
svg text{font-size:14px} svg .axis,svg .name{font-size:14.5px} svg .in{font-size:11px}}
@media print{body{max-width:none;padding:0;font-size:11pt} #tip,nav,summary{display:none}
details::details-content{display:block;content-visibility:visible;height:auto}
.figures{display:block} figure{margin:0 0 1rem} svg.chart{max-width:11cm;break-inside:avoid} tr{break-inside:avoid}
h2,h3,figcaption,.lead,.legend{break-after:avoid} tbody th:first-child,thead th:first-child{position:static}
.scroll{overflow:visible} table{font-size:8pt} th,td{padding:.1rem .35rem;white-space:normal}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""


def _variables(colors: tuple[str, ...]) -> str:
    return "".join(f"--c{number}:{color};" for number, color in enumerate(colors))


STYLE = (
    _STYLE.replace("INK", INK).replace("MUTED", MUTED).replace("LIGHT", _variables(COLORS))
    .replace("DARK", _variables(DARK_COLORS))
    .replace("CLASSES", "".join(f".c{number}{{--c:var(--c{number})}}" for number in range(len(COLORS))))
)  # fmt: skip

SCRIPT = """
'use strict';
(() => {
  const tip = document.getElementById('tip');
  const say = (text, event) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const x = Math.min(event.clientX + 14, innerWidth - box.width - 6);
    const y = event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18;
    tip.style.left = Math.max(6, x) + 'px';
    tip.style.top = Math.max(6, y) + 'px';
  };
  const uncross = () => document.querySelectorAll('.cross').forEach(line => line.remove());
  const hide = () => { tip.hidden = true; uncross(); };
  const scale = text => {
    const [low, high, start, end, log] = text.split(' ').map(Number);
    return place => {
      const share = (place - start) / (end - start);
      return log ? low * (high / low) ** share : low + share * (high - low);
    };
  };
  const short = value =>
    Math.abs(value) >= 1e4 ? Math.round(value).toLocaleString('en') : String(+value.toPrecision(4));
  const at = (svg, event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());

  const onLines = (svg, event) => {
    const here = at(svg, event), toX = scale(svg.dataset.x), toY = scale(svg.dataset.y);
    const found = [...svg.querySelectorAll('polyline')].map(line => {
      const points = line.getAttribute('points').split(' ').map(pair => pair.split(',').map(Number));
      const [x, y] = points.reduce((a, b) => Math.abs(b[0] - here.x) < Math.abs(a[0] - here.x) ? b : a);
      return { name: line.dataset.n, x, y };
    });
    const nearest = found.reduce((a, b) => Math.abs(b.x - here.x) < Math.abs(a.x - here.x) ? b : a).x;
    const shown = found.filter(one => Math.abs(one.x - nearest) < 14).sort((a, b) => a.y - b.y).slice(0, 14);
    const value = toX(nearest), names = svg.dataset.xn && svg.dataset.xn.split('|');
    const head = names ? names[Math.round(value)] : svg.dataset.whole ? Math.round(value) : short(value);
    uncross();
    const cross = document.createElementNS(svg.namespaceURI, 'path');
    const [, , bottom, top] = svg.dataset.y.split(' ');
    cross.setAttribute('d', `M${nearest} ${bottom}V${top}`);
    cross.setAttribute('class', 'cross');
    svg.appendChild(cross);
    say([`${svg.dataset.xl}: ${head}`, ...shown.map(one => `${one.name}: ${short(toY(one.y))}`)].join('\\n'), event);
  };

  const onCells = (svg, event) => {
    const here = at(svg, event), [left, top, side, tall, rows, columns] = svg.dataset.place.split(' ').map(Number);
    const line = Math.floor((here.y - top) / tall), j = Math.floor((here.x - left) / side);
    if (line < 0 || j < 0 || line >= rows || j >= columns) return hide();
    const i = svg.dataset.up ? rows - 1 - line : line;
    const values = svg.dataset.cells.split(';')[i].split(',').map(Number);
    const total = values.reduce((a, b) => a + b, 0), [row, column] = svg.dataset.says.split('|');
    const share = total ? ` (${(100 * values[j] / total).toFixed(1)} % of the row)` : '';
    say(`${row}: ${svg.dataset.rows.split('|')[i]}\\n${column}: ${svg.dataset.columns.split('|')[j]}\\n` +
      `${values[j].toLocaleString('en')} nodes${share}`, event);
  };

  const onMap = (svg, event) => {
    const here = at(svg, event);
    let best = [9, ''];
    svg.querySelectorAll('.points').forEach(group => {
      const ids = group.dataset.ids.split('|');
      group.getAttribute('d').split('M').slice(1).forEach((part, i) => {
        const [x, y] = part.split(' ').map(parseFloat), far = Math.hypot(x - here.x, y - here.y);
        if (far < best[0]) best = [far, `${ids[i]}\\n${group.dataset.n}`];
      });
    });
    return best[1] ? say(best[1], event) : hide();
  };

  const onMove = event => {
    const svg = event.target.closest && event.target.closest('svg.chart');
    if (!svg) return hide();
    if (svg.dataset.x) return onLines(svg, event);
    if (svg.dataset.map) return onMap(svg, event);
    if (svg.dataset.cells) return onCells(svg, event);
    const part = event.target.closest('[data-tip]');
    return part ? say(part.dataset.tip, event) : hide();
  };
  document.addEventListener('pointermove', onMove);
  document.addEventListener('pointerdown', onMove);
  document.addEventListener('scroll', hide, { passive: true });
  document.addEventListener('keydown', event => { if (event.key === 'Escape') hide(); });
  let opened = [];
  addEventListener('beforeprint', () => {
    opened = [...document.querySelectorAll('details:not([open])')];
    opened.forEach(one => { one.open = true; });
  });
  addEventListener('afterprint', () => opened.forEach(one => { one.open = false; }));
})();
"""


def policy() -> str:
    """What the page may do: this style, this very script, and no request to anywhere."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
