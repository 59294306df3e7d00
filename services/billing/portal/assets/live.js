// Renews the parts of a page that move, and lets people stop that. Without it a page stays as it was loaded.
(function () {
  var parts = document.querySelectorAll('[data-live]'), button = document.getElementById('pause');
  if (!parts.length || !button || !window.fetch) return;
  var paused = false, every = 5000;
  function renew(part) {
    fetch(part.getAttribute('data-live'), { credentials: 'same-origin', headers: { Accept: 'text/html' } })
      .then(function (r) { return r.ok ? r.text() : null; })
      .then(function (text) {
        if (text === null || paused || part.contains(document.activeElement)) return;
        var fresh = new DOMParser().parseFromString(text, 'text/html').body;
        part.replaceChildren.apply(part, Array.from(fresh.childNodes));
      })
      .catch(function () {});
  }
  button.hidden = false;
  button.addEventListener('click', function () {
    paused = !paused;
    button.setAttribute('aria-pressed', String(paused));
    button.textContent = button.getAttribute(paused ? 'data-resume' : 'data-pause');
  });
  setInterval(function () { if (!paused && !document.hidden) parts.forEach(renew); }, every);
})();
