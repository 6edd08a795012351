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
    say([`${svg.dataset.xl}: ${head}`, ...shown.map(one => `${one.name}: ${short(toY(one.y))}`)].join('\n'), event);
  };

  const onMap = (svg, event) => {
    const here = at(svg, event);
    let best = [9, ''];
    svg.querySelectorAll('.points').forEach(group => {
      const ids = group.dataset.ids.split('|');
      group.getAttribute('d').split('M').slice(1).forEach((part, i) => {
        const [x, y] = part.split(' ').map(parseFloat), far = Math.hypot(x - here.x, y - here.y);
        if (far < best[0]) best = [far, `${ids[i]}\n${group.dataset.n}`];
      });
    });
    return best[1] ? say(best[1], event) : hide();
  };

  const onMove = event => {
    const svg = event.target.closest && event.target.closest('svg.chart');
    if (!svg) return hide();
    if (svg.dataset.x) return onLines(svg, event);
    if (svg.dataset.map) return onMap(svg, event);
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
