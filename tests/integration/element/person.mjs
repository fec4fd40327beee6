// A person with an Element-like client: matrix-js-sdk with its Rust crypto, driven by JSON lines.
//
// Each line on stdin is {"id": n, "do": name, ...arguments}; the answer on stdout is {"id": n, "ok": value} or
// {"id": n, "error": text}. What happens by itself is {"seen": kind, ...}.
import { EventEmitter } from "node:events";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const modules = process.env.SQUIDBOT_NODE_MODULES;
const load = (path) => import(pathToFileURL(`${modules}/matrix-js-sdk/lib/${path}`).href);
const say = (value) => process.stdout.write(JSON.stringify(value) + "\n");
for (const name of ["log", "debug", "info", "warn", "error", "trace"]) console[name] = () => {};

const sdk = await load("index.js");
const { logger } = await load("logger.js");
logger.setLevel?.("silent", false);
const api = await load("crypto-api/index.js");

const { subtle } = globalThis.crypto;
const unpadded = (bytes) => Buffer.from(bytes).toString("base64").replace(/=+$/, "");

let client;
let emoji = {};
const asked = new Map();
const requests = new EventEmitter();

async function describe(event) {
    await client.decryptEventIfNeeded(event).catch(() => {});
    const crypto = client.getCrypto();
    const covered = event.isEncrypted() && !event.isDecryptionFailure();
    const info = covered ? await crypto.getEncryptionInfoForEvent(event) : null;
    return {
        seen: "event",
        room: event.getRoomId(),
        id: event.getId(),
        sender: event.getSender(),
        type: event.getType(),
        wire: event.getWireType(),
        content: event.isDecryptionFailure() ? {} : event.getContent(),
        unreadable: event.isDecryptionFailure() ? String(event.decryptionFailureReason) : null,
        shield: info ? info.shieldColour : null,
        reason: info ? info.shieldReason : null,
        rings: client.getPushActionsForEvent(event, true)?.notify ?? false,
    };
}

async function finish(request) {
    const verifier = request.verifier ?? (await request.startVerification("m.sas.v1"));
    verifier.on("show_sas", (sas) => {
        emoji[request.otherUserId] = sas.sas.emoji.map(([sign, name]) => `${sign} ${name}`);
        sas.confirm();
    });
    await verifier.verify();
    return emoji[request.otherUserId];
}

function until(condition, emitter, name) {
    return new Promise((resolve) => {
        const look = () => condition() && (emitter.off(name, look), resolve());
        emitter.on(name, look);
        look();
    });
}

const actions = {
    async start({ url, user, token, device }) {
        client = sdk.createClient({ baseUrl: url, userId: user, accessToken: token, deviceId: device });
        await client.initRustCrypto({ useIndexedDB: false });
        client.on("Room.timeline", async (event, _room, toStart) => {
            if (!toStart && event.getSender() !== user) say(await describe(event));
        });
        client.on("Event.decrypted", async (event) => {
            if (event.getSender() !== user) say(await describe(event));
        });
        client.on("crypto.verificationRequestReceived", (request) => {
            asked.set(request.otherUserId, request);
            requests.emit("asked");
        });
        await client.startClient({ initialSyncLimit: 20 });
        await until(() => client.isInitialSyncComplete(), client, "sync");
        return true;
    },
    async bootstrap({ password }) {
        await client.getCrypto().bootstrapCrossSigning({
            setupNewCrossSigning: true,
            authUploadDeviceSigningKeys: (request) =>
                request(null).catch((error) =>
                    request({
                        type: "m.login.password",
                        identifier: { type: "m.id.user", user: client.getUserId() },
                        password,
                        session: error.data.session,
                    }),
                ),
        });
        return true;
    },
    async create({ invite, encrypted, version }) {
        const initial_state = encrypted
            ? [{ type: "m.room.encryption", state_key: "", content: { algorithm: "m.megolm.v1.aes-sha2" } }]
            : [];
        const made = await client.createRoom({
            invite, is_direct: true, preset: "trusted_private_chat", initial_state, room_version: version,
        });
        return made.room_id;
    },
    async joined({ room, user }) {
        const is = () => client.getRoom(room)?.getMember(user)?.membership === "join";
        await until(is, client, "RoomMember.membership");
        return true;
    },
    async send({ room, text }) {
        return (await client.sendMessage(room, { msgtype: "m.text", body: text })).event_id;
    },
    async event({ room, type, content }) {
        return (await client.sendEvent(room, type, content)).event_id;
    },
    async look({ room, event }) {
        return await describe(client.getRoom(room).findEventById(event));
    },
    async join({ room }) {
        await client.joinRoom(room);
        return true;
    },
    async redact({ room, event }) {
        return (await client.redactEvent(room, event)).event_id;
    },
    async sendFile({ room, content, base64 }) {
        // Encrypted as Element does it: WebCrypto, 64 bits of counter, the hash of what is stored.
        const key = await subtle.generateKey({ name: "AES-CTR", length: 256 }, true, ["encrypt", "decrypt"]);
        const iv = new Uint8Array(16);
        globalThis.crypto.getRandomValues(iv.subarray(0, 8));
        const plain = Buffer.from(base64, "base64");
        const stored = await subtle.encrypt({ name: "AES-CTR", counter: iv, length: 64 }, key, plain);
        const { content_uri: url } = await client.uploadContent(new Blob([stored]), { type: "application/octet-stream" });
        const sha256 = unpadded(await subtle.digest("SHA-256", stored));
        const file = { v: "v2", url, key: await subtle.exportKey("jwk", key), iv: unpadded(iv), hashes: { sha256 } };
        return (await client.sendMessage(room, { ...content, file })).event_id;
    },
    async openFile({ file }) {
        const answer = await fetch(client.mxcUrlToHttp(file.url, undefined, undefined, undefined, true, true, true), {
            headers: { Authorization: `Bearer ${client.getAccessToken()}` },
        });
        const stored = await answer.arrayBuffer();
        const key = await subtle.importKey("jwk", file.key, { name: "AES-CTR" }, false, ["decrypt"]);
        const counter = Buffer.from(file.iv, "base64");
        const plain = await subtle.decrypt({ name: "AES-CTR", counter, length: 64 }, key, stored);
        const right = unpadded(await subtle.digest("SHA-256", stored)) === file.hashes.sha256;
        return { status: answer.status, right, base64: Buffer.from(plain).toString("base64") };
    },
    exclude({ on }) {
        const mode = on ? new api.OnlySignedDevicesIsolationMode() : new api.AllDevicesIsolationMode(false);
        client.getCrypto().setDeviceIsolationMode(mode);
        return true;
    },
    async discard({ room }) {
        await client.getCrypto().forceDiscardSession(room);
        return true;
    },
    async verify({ user, device, room }) {
        const crypto = client.getCrypto();
        await crypto.getUserDeviceInfo([user], true);
        const request = room
            ? await crypto.requestVerificationDM(user, room)
            : await crypto.requestDeviceVerification(user, device);
        await until(() => request.phase >= api.VerificationPhase.Ready, request, "change");
        const seen = await finish(request);
        await until(() => request.phase >= api.VerificationPhase.Done, request, "change");
        return { phase: request.phase, done: request.phase === api.VerificationPhase.Done, emoji: seen };
    },
    async asked({ user }) {
        // Somebody else asks to be verified: accept, and choose emoji.
        await until(() => asked.has(user), requests, "asked");
        const request = asked.get(user);
        await request.accept();
        await until(() => request.phase >= api.VerificationPhase.Ready, request, "change");
        const seen = await finish(request);
        await until(() => request.phase >= api.VerificationPhase.Done, request, "change");
        return { done: request.phase === api.VerificationPhase.Done, emoji: seen };
    },
    async trust({ user }) {
        return (await client.getCrypto().getUserVerificationStatus(user)).isCrossSigningVerified();
    },
    stop() {
        client?.stopClient();
        setTimeout(() => process.exit(0), 50);
        return true;
    },
};

createInterface({ input: process.stdin }).on("line", async (line) => {
    const { id, do: name, ...given } = JSON.parse(line);
    try {
        say({ id, ok: await actions[name](given) });
    } catch (error) {
        say({ id, error: `${error?.name}: ${error?.message}` });
    }
});
say({ seen: "ready" });
