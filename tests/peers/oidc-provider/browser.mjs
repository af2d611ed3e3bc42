// Somebody with a browser: goes to an address, fills in the forms of oidc-provider, and ends where
// the provider sends the browser back to.
//
//   NODE_EXTRA_CA_CERTS=CERTIFICATE node browser.mjs URL USER [--stop]
//
// Prints the address that the browser comes back to. With --stop, it does not go there. With the
// user '-', somebody cancels.

const [start, user, stop] = process.argv.slice(2);

const cookies = new Map();

async function go(url, form) {
    const answer = await fetch(url, {
        method: form ? 'POST' : 'GET',
        redirect: 'manual',
        headers: {
            cookie: [...cookies].map(([name, value]) => `${name}=${value}`).join('; '),
            ...(form && { 'content-type': 'application/x-www-form-urlencoded' }),
        },
        body: form && new URLSearchParams(form).toString(),
    });
    for (const cookie of answer.headers.getSetCookie()) {
        const [name, value] = cookie.split(';')[0].split('=', 2);
        cookies.set(name, value);
    }
    return answer;
}

let [url, form] = [start, null];
for (let steps = 0; steps < 20; steps += 1) {
    if (url.startsWith('http://')) {
        if (stop !== '--stop') await (await fetch(url)).text();
        console.log(url);
        process.exit(0);
    }
    const answer = await go(url, form);
    const location = answer.headers.get('location');
    const page = await answer.text();
    if (location) {
        [url, form] = [new URL(location, url).href, null];
        continue;
    }
    const action = page.match(/<form[^>]* action="([^"]+)"/)?.[1];
    const prompt = page.match(/name="prompt" value="([^"]+)"/)?.[1];
    if (!action || !prompt) throw new Error(`status ${answer.status} of ${url}: ${page}`);
    const cancel = page.match(/href="([^"]*\/abort)"/)?.[1];
    if (user === '-') {
        [url, form] = [new URL(cancel, url).href, null];
        continue;
    }
    const filled = prompt === 'login' ? { prompt, login: user, password: 'any' } : { prompt };
    [url, form] = [new URL(action, url).href, filled];
}
throw new Error('the provider asks for ever');
