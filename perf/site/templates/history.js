// asv requests a graph of each benchmark from each machine, measured or not, and handles the failure.
$.ajaxPrefilter((options, _, request) => {
  const path = decodeURIComponent(options.url.split("?")[0]);
  if (path.startsWith("graphs/") && !published.has(path)) request.abort();
});
// asv draws lines alone, so that a single value leaves its box empty.
$.plot.plugins.push({
  init: (plot) => plot.hooks.processRawData.push((_, series, data) => {
    if (data.length === 1) series.points.show = true;
  }),
});
// asv shortens bytes to "2.687M".
$(() => {
  const { pretty_unit: written } = $.asv;
  $.asv.pretty_unit = (value, unit) => `${written(value, unit)}${unit === "bytes" ? "B" : ""}`;
});
