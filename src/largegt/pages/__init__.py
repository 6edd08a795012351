"""Parts of HTML pages: escaped markup, tables, charts as SVG, one template."""
