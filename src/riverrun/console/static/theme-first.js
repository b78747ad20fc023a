// A classic script that blocks the first paint, so that a chosen theme does not flash.
document.documentElement.dataset.theme = localStorage.getItem("riverrun.theme") || "system";
