"""Style sheet of the HTML report: system fonts, light or dark as the reader's system prefers, and rules for print."""

STYLE = """
:root{--bg:#f5f7f9;--card:#fff;--ink:#14212e;--soft:#566573;--line:#dfe5ea;--c1:#0f7f92;--c2:#b3541e;--muted:#98a5b1;
--good:#217a45;--bad:#c0353a}
@media (prefers-color-scheme:dark){:root{--bg:#0c141f;--card:#121d2b;--ink:#dbe4ec;--soft:#93a3b3;--line:#223144;
--c1:#56c2d0;--c2:#e8a56f;--muted:#64768a;--good:#7ec896;--bad:#f07178}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);line-height:1.5;
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1180px;margin:0 auto;padding:44px 28px 72px}
h1{font-size:38px;line-height:1.15;letter-spacing:-.02em;margin:2px 0 8px;overflow-wrap:anywhere}
h2{font-size:17px;margin:0;display:inline}
p{margin:0}
.brand{color:var(--c1);font-weight:700;letter-spacing:.04em}
.lede{color:var(--soft);font-size:17px}
header{margin-bottom:28px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(190px,1fr));gap:16px;margin-bottom:16px}
.card,.tile{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:20px 22px;margin:0}
.tile .label{color:var(--soft);font-size:14px}
.tile .big{font-size:32px;font-weight:650;letter-spacing:-.02em;line-height:1.25;font-variant-numeric:tabular-nums}
.tile .note{color:var(--soft);font-size:13px;line-height:1.35}
.tile.good .big{color:var(--good)}.tile.bad .big{color:var(--bad)}
.wide{margin-bottom:16px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(480px,100%),1fr));gap:16px;margin-bottom:16px}
svg{display:block;width:100%;height:auto;font-family:inherit}
svg text{fill:var(--soft);font-size:12px}
svg .title{fill:var(--ink);font-size:16px;font-weight:650}
svg .none{text-anchor:middle;font-size:14px}
svg .value{fill:var(--ink);text-anchor:middle}
svg .barlabel{font-size:14px}svg .barvalue{fill:var(--ink);font-size:14px;font-weight:600}
svg path{fill:none}
svg .grid{stroke:var(--line);stroke-width:1}
.line,.dots{stroke-width:2.2;stroke-linejoin:round;stroke-linecap:round}
.faint{stroke-width:1.2;opacity:.32;stroke-linejoin:round}
path.c1{stroke:var(--c1)}path.c2{stroke:var(--c2)}path.muted{stroke:var(--muted)}path.band{stroke:none}
.band{opacity:.18}.fill.c1{fill:var(--c1)}.fill.c2{fill:var(--c2)}.fill.muted{fill:var(--muted)}.fill.bad{fill:var(--bad)}
.bound{stroke:var(--ink);stroke-width:1.4;stroke-dasharray:4 4}svg .boundlabel{fill:var(--ink);font-weight:600}
.table{margin-bottom:16px;overflow-x:auto}
table{border-collapse:collapse;width:100%;margin-top:12px;font-size:15px}
th,td{text-align:left;padding:7px 14px 7px 0;border-top:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere}
thead th{color:var(--soft);font-weight:500;font-size:13.5px;border-top:0}
.num{text-align:right;font-variant-numeric:tabular-nums;padding-right:0;padding-left:14px}
.keys th{color:var(--soft);font-weight:400;width:34%}
summary{cursor:pointer}
h3{font-size:16px;margin:0 0 10px}
.samples{margin-bottom:16px}.samples .card{margin-top:12px}
.note,.sample .label{color:var(--soft);font-size:13.5px}
.sample .label{margin-top:12px}
.figures{display:flex;flex-wrap:wrap;gap:6px 26px;margin:0}
.figures dt{color:var(--soft);font-size:13px}.figures dd{margin:0;font-weight:600;overflow-wrap:anywhere}
pre{margin:4px 0 8px;padding:10px 12px;background:var(--bg);border-radius:8px;white-space:pre-wrap;
overflow-wrap:anywhere;font:14px/1.5 ui-monospace,Menlo,Consolas,monospace;max-height:60vh;overflow-y:auto}
.stale{background:color-mix(in srgb,var(--c2) 18%,transparent)}
.context{background:color-mix(in srgb,var(--muted) 30%,transparent);font-style:italic}
@media print{body{background:#fff}.card,.tile{break-inside:avoid}}
"""
